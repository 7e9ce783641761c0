// A program of C++ that registers what runs on its files, and waits for it.
#include <fcntl.h>
#include <forebay/forebay.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

int main(int argc, char **argv) {
    forebay_session *session = nullptr;
    if (argc != 2 || forebay_start(0, &session) != 0)
        return 1;
    const std::vector<const char *> words = {"wc", "-c", "{file}", nullptr};
    const std::vector<const char *> options = {"sum=blake3", nullptr};
    forebay_analysis size = FOREBAY_ANALYSIS;
    size.match = "*";
    size.command = words.data();
    forebay_operation sum = FOREBAY_OPERATION;
    sum.match = "*";
    sum.operation = "checksum";
    sum.options = options.data();
    sum.patience_ms = 1;
    if (forebay_analyse(session, &size) != 0 || forebay_operate(session, &sum) != 0) {
        std::fprintf(stderr, "%s\n", forebay_last_message());
        return 1;
    }
    const int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (write(fd, "abc", 3) != 3 || close(fd) != 0)
        return 1;
    for (const char *name : {"wc", "checksum"}) {
        forebay_action_info info = {};
        info.size = sizeof info;
        while (forebay_action(session, name, &info) == 0 && info.done == 0 && info.failed == 0)
            usleep(20000);
        const int done = static_cast<int>(info.done), failed = static_cast<int>(info.failed);
        std::printf("%s %d %d\n", info.name, done, failed);
    }
    return forebay_end(session);
}
