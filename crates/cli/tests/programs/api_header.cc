// A program of C++ with the header: the handles can be owned by smart pointers.
#include <fcntl.h>
#include <forebay/forebay.h>

#include <cstdio>
#include <memory>
#include <string_view>

namespace {

struct End {
    void operator()(forebay_session *session) const { forebay_end(session); }
    void operator()(forebay_file *file) const { forebay_close(file); }
};

}  // namespace

int main(int argc, char **argv) {
    forebay_session *session = nullptr;
    forebay_file *file = nullptr;
    if (argc != 2 || forebay_start(0, &session) != 0)
        return 1;
    const std::unique_ptr<forebay_session, End> owned(session);
    if (forebay_open(session, argv[1], O_RDWR | O_CREAT, 0600, &file) != 0) {
        std::fputs(forebay_last_message(), stderr);
        return 1;
    }
    const std::unique_ptr<forebay_file, End> open(file);
    const std::string_view text = "from C++";
    const auto bytes = static_cast<std::int64_t>(text.size());
    if (forebay_write(file, text.data(), bytes, 0) != bytes || forebay_wait(file, FOREBAY_STORE, -1))
        return 1;
    std::printf("%d\n", forebay_is_safe(file, FOREBAY_STORE));
    return 0;
}
