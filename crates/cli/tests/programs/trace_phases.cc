// A program of C++ that marks phases: each lasts as long as its object, also where an exception
// ends it.
#include <fcntl.h>
#include <forebay/phase.hpp>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>

namespace {

void fails(forebay_session *session) {
    const forebay::phase inner(session, "inner");
    throw std::runtime_error("fails");
}

}  // namespace

int main(int argc, char **argv) {
    forebay_session *session = nullptr;
    if (argc != 2 || forebay_start(0, &session) != 0)
        return 1;
    const int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
    for (int turn = 0; turn < 3; ++turn) {
        forebay::phase outer(session, "outer");
        try {
            fails(session);
        } catch (const std::runtime_error &) {
            usleep(1000);
        }
        outer.end();
        if (write(fd, "abc", 3) != 3)
            return 1;
    }
    std::puts("done");
    return 0;
}
