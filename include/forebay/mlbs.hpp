/*
 * mlbs.hpp - a container of records for programs whose data is larger than memory, in C++17.
 *
 * MLBStore<T> is a contiguous array of elements with write(id), which keeps all of it as a record,
 * and read(id), which brings a record back: the class of Figure 5 of "MLBS: Transparent Data
 * Caching in Hierarchical Storage for Out-of-Core HPC Applications" (Alturkestani et al.). It is
 * over the functions forebay_records_... of forebay.h: link with -lforebay. docs/container.md is
 * the guide.
 *
 * Results: calls that may fail return 0, or a negative code of forebay.h; message() says what
 * happened in the last one of this thread that failed. A constructor leaves its code in status(),
 * and all calls return that then. No exception is thrown, and none is needed (-fno-exceptions),
 * but by check(), for programs that prefer them.
 *
 * data() stays what it is across write() and read(); only resize(), reserve(), push_back() and a
 * move change it. Threads may write and read through different objects at once, also of one
 * container; an object is for one thread at a time. mlbs_mpi.hpp has the collective calls.
 */
#ifndef FOREBAY_MLBS_HPP
#define FOREBAY_MLBS_HPP

#include <forebay/forebay.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cerrno>
#include <unistd.h>

#if defined(__cpp_exceptions)
#include <stdexcept>
#endif

namespace forebay {

namespace detail {

/* The text of a failure that this header has found itself, and the library's last one before. */
struct own_text {
    char text[192];
    char before[256];
    bool is_last;
};

inline own_text &own() noexcept {
    static thread_local own_text text{};
    return text;
}

/* Keeps what `put` writes to a text as that of the last failure; `code`. */
template <class Put> int fail(int code, Put put) noexcept {
    own_text &text = own();
    put(text.text, sizeof text.text);
    std::snprintf(text.before, sizeof text.before, "%s", forebay_last_message());
    text.is_last = true;
    return code;
}

inline int closed() noexcept {
    return fail(FOREBAY_E_CLOSED, [](char *to, std::size_t room) {
        std::snprintf(to, room, "the container was closed, or moved to another object");
    });
}

} // namespace detail

/* What happened in the last call of this thread that failed. */
inline const char *message() {
    const detail::own_text &own = detail::own();
    const char *last = forebay_last_message();
    const bool is_own = own.is_last && std::strncmp(last, own.before, sizeof own.before - 1) == 0;
    return is_own ? own.text : last;
}

#if defined(__cpp_exceptions)
/* A call that failed: what() is its message. */
class error : public std::runtime_error {
public:
    explicit error(int code) : std::runtime_error(message()), code_(code) {}
    int code() const noexcept { return code_; }

private:
    int code_;
};

/* Throws error if `code` is that of a failure, and returns it otherwise. */
inline int check(int code) {
    if (code < 0)
        throw error(code);
    return code;
}
#endif

/* What may be said of a container, MLBS IV.C. */
struct hints {
    /* Where its files are. Empty: the environment's FOREBAY_RECORDS, else the current directory. */
    std::string directory;
    /* Objects of one name share records, in all processes. Empty: the object has its own. */
    std::string name;
    /* Bytes that are read ahead, and bytes beyond these that the tiers may hold. */
    std::uint64_t memory = FOREBAY_RECORDS_AUTO;
    std::uint64_t fast = FOREBAY_RECORDS_AUTO;
    /* Threads that read ahead. */
    unsigned helpers = 1;
    forebay_order order = FOREBAY_ORDER_FIFO;
    forebay_layout layout = FOREBAY_LAYOUT_PACKED;
    /* The records stay when the last object is gone. */
    bool keep = false;
};

template <class T> class MLBStore {
    static_assert(std::is_trivially_copyable_v<T>,
                  "a record keeps the bytes of its elements, so they must be trivially copyable");
    static_assert(!std::is_const_v<T> && !std::is_volatile_v<T>, "elements are written to");

public:
    using value_type = T;
    using size_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using reference = T &;
    using const_reference = const T &;
    using pointer = T *;
    using const_pointer = const T *;
    using iterator = T *;
    using const_iterator = const T *;

    MLBStore() : MLBStore(0) {}
    /* `count` elements of T(), and a container of its own, or that of the hints. */
    explicit MLBStore(size_type count, const hints &hints = {}) {
        status_ = open(hints);
        if (status_ == 0)
            status_ = resize(count);
    }
    MLBStore(const MLBStore &) = delete;
    MLBStore &operator=(const MLBStore &) = delete;
    MLBStore(MLBStore &&other) noexcept { swap(other); }
    MLBStore &operator=(MLBStore &&other) noexcept {
        MLBStore(std::move(other)).swap(*this);
        return *this;
    }
    ~MLBStore() {
        close();
        std::free(data_);
    }

    /* 0, or why the object could not be made, or was closed. */
    int status() const noexcept { return status_; }
    /* Ends the container; the elements stay. Those of a name that others use, or keep, stay there. */
    int close() {
        if (records_ == nullptr)
            return 0;
        int code = forebay_records_close(std::exchange(records_, nullptr));
        int ended = forebay_end(std::exchange(session_, nullptr));
        status_ = FOREBAY_E_CLOSED;
        return code != 0 ? code : ended;
    }

    /* Keeps all elements as record `id`. It survives the program when this returns. */
    int write(std::uint64_t id) const {
        return with([&] { return forebay_records_write(records_, id, data_, bytes(), sizeof(T)); });
    }
    /* Replaces all elements by those of record `id`, which has to have as many. */
    int read(std::uint64_t id) {
        return with([&] { return forebay_records_read(records_, id, data_, bytes(), sizeof(T)); });
    }
    /* Waits until record `id` survives a loss of power; for ever if the limit is negative. */
    int sync(std::uint64_t id, std::int64_t timeout_ms = -1) const {
        return with([&] { return forebay_records_sync(records_, id, timeout_ms); });
    }
    /* Forgets record `id`. */
    int drop(std::uint64_t id) {
        return with([&] { return forebay_records_drop(records_, id); });
    }
    /* How many elements record `id` has, or a negative code. */
    std::int64_t record_size(std::uint64_t id) const {
        std::int64_t bytes = 0;
        const int code = with([&] {
            bytes = forebay_records_size(records_, id);
            return 0;
        });
        if (code != 0)
            return code;
        constexpr auto size = static_cast<std::int64_t>(sizeof(T));
        if (bytes >= 0 && bytes % size != 0)
            return detail::fail(FOREBAY_E_ELEMENT, [&](char *to, size_type room) {
                std::snprintf(to, room, "a record of %lld bytes is no whole elements of %zu bytes",
                              static_cast<long long>(bytes), sizeof(T));
            });
        return bytes < 0 ? bytes : bytes / size;
    }
    /* Says which records will be read next, in this order. */
    int will_read(const std::uint64_t *ids, size_type count) {
        auto length = static_cast<std::int64_t>(count);
        return with([&] { return forebay_records_will_read(records_, ids, length); });
    }
    int will_read(const std::vector<std::uint64_t> &ids) {
        return will_read(ids.data(), ids.size());
    }
    /* The records that are there. */
    int ids(std::vector<std::uint64_t> &found) const { return list(forebay_records_ids, found); }
    /* The records whose last write is not whole, after a look at all that an earlier process has
     * written. read() gives their last whole version, if there is one. */
    int torn(std::vector<std::uint64_t> &found) const { return list(forebay_records_check, found); }
    /* What happened so far. */
    int info(forebay_records_info &info) const {
        info = forebay_records_info{};
        info.size = sizeof info;
        return with([&] { return forebay_records_status(records_, &info); });
    }

    /* Has `count` elements from now on; new ones are T(). -ENOMEM leaves all as it is. */
    int resize(size_type count) {
        if (count > size_) {
            int code = reserve(count);
            if (code != 0)
                return code;
            std::uninitialized_value_construct_n(data_ + size_, count - size_);
        }
        size_ = count;
        return 0;
    }
    /* Has room for `count` elements. */
    int reserve(size_type count) {
        if (count <= capacity_)
            return 0;
        void *made = nullptr;
        if (count > max_size() || posix_memalign(&made, alignment(), count * sizeof(T)) != 0)
            return detail::fail(-ENOMEM, [&](char *to, size_type room) {
                std::snprintf(to, room, "no memory for %zu elements of %zu bytes", count, sizeof(T));
            });
        if (size_ > 0)
            std::memcpy(made, static_cast<const void *>(data_), size_ * sizeof(T));
        std::free(data_);
        data_ = static_cast<T *>(made);
        capacity_ = count;
        return 0;
    }
    int push_back(const T &element) {
        if (size_ == capacity_) {
            // It may be an element of this object, which moves.
            T copy = element;
            int code = reserve(size_ < 16 ? 16 : size_ < max_size() / 2 ? 2 * size_ : size_ + 1);
            if (code != 0)
                return code;
            new (data_ + size_++) T(copy);
            return 0;
        }
        new (data_ + size_++) T(element);
        return 0;
    }

    T &operator[](size_type at) noexcept { return data_[at]; }
    const T &operator[](size_type at) const noexcept { return data_[at]; }
    T *data() noexcept { return data_; }
    const T *data() const noexcept { return data_; }
    size_type size() const noexcept { return size_; }
    size_type capacity() const noexcept { return capacity_; }
    static constexpr size_type max_size() noexcept {
        return static_cast<size_type>(std::numeric_limits<std::ptrdiff_t>::max()) / sizeof(T);
    }
    bool empty() const noexcept { return size_ == 0; }
    iterator begin() noexcept { return data_; }
    iterator end() noexcept { return data_ + size_; }
    const_iterator begin() const noexcept { return data_; }
    const_iterator end() const noexcept { return data_ + size_; }
    const_iterator cbegin() const noexcept { return begin(); }
    const_iterator cend() const noexcept { return end(); }
    T &front() noexcept { return data_[0]; }
    T &back() noexcept { return data_[size_ - 1]; }
    const T &front() const noexcept { return data_[0]; }
    const T &back() const noexcept { return data_[size_ - 1]; }

    void swap(MLBStore &other) noexcept {
        std::swap(session_, other.session_);
        std::swap(records_, other.records_);
        std::swap(status_, other.status_);
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
    }

private:
    /* A session of its own: its end is that of the container. */
    int open(const hints &hints) {
        detail::own().is_last = false;
        int code = forebay_start(0, &session_);
        if (code != 0)
            return code;
        forebay_records_options options = FOREBAY_RECORDS_OPTIONS;
        options.memory_bytes = hints.memory;
        options.fast_bytes = hints.fast;
        options.helpers = hints.helpers;
        options.order = hints.order;
        options.layout = hints.layout;
        options.is_kept = hints.keep;
        std::string directory = hints.directory;
        if (directory.empty()) {
            const char *given = std::getenv("FOREBAY_RECORDS");
            directory = given != nullptr && *given != '\0' ? given : ".";
        }
        const std::string name = hints.name.empty() ? own_name() : hints.name;
        code = forebay_records_open(session_, directory.c_str(), name.c_str(), &options, &records_);
        if (code != 0)
            forebay_end(std::exchange(session_, nullptr));
        return code;
    }
    /* One that no other object has: host, process, and a number. */
    static std::string own_name() {
        static std::atomic<unsigned> next{0};
        char host[65] = "";
        if (gethostname(host, sizeof host - 1) != 0)
            host[0] = '\0';
        for (char &c : host)
            c = c == '/' ? '_' : c;
        char name[128];
        std::snprintf(name, sizeof name, "mlbs-%s-%ld-%u", host, static_cast<long>(getpid()), next++);
        return name;
    }
    template <class Call> int with(Call call) const {
        if (status_ == FOREBAY_E_CLOSED)
            return detail::closed();
        if (status_ != 0)
            return detail::fail(status_, [&](char *to, size_type room) {
                std::snprintf(to, room, "the container could not be made: %s",
                              forebay_strerror(status_));
            });
        detail::own().is_last = false;
        return call();
    }
    template <class Call> int list(Call call, std::vector<std::uint64_t> &found) const {
        return with([&] {
            for (;;) {
                auto room = static_cast<std::int64_t>(found.size());
                std::int64_t count = call(records_, found.data(), room);
                if (count < 0)
                    return static_cast<int>(count);
                found.resize(static_cast<size_type>(count));
                if (count <= room)
                    return 0;
            }
        });
    }
    std::int64_t bytes() const noexcept { return static_cast<std::int64_t>(size_ * sizeof(T)); }
    /* That of a page: large elements are copied fastest. */
    static constexpr size_type alignment() noexcept { return alignof(T) > 4096 ? alignof(T) : 4096; }

    forebay_session *session_ = nullptr;
    forebay_records *records_ = nullptr;
    int status_ = FOREBAY_E_CLOSED;
    T *data_ = nullptr;
    size_type size_ = 0;
    size_type capacity_ = 0;
};

template <class T> void swap(MLBStore<T> &one, MLBStore<T> &other) noexcept { one.swap(other); }

} // namespace forebay

#endif
