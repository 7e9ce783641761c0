/*
 * phase.hpp - marks of phases for C++, from C++11 on: a phase lasts as long as its object.
 *
 *     for (int step = 0; step < steps; ++step) {
 *         forebay::phase forward(session, "forward");
 *         compute();
 *     }
 *
 * `forebay trace` shows phases; elsewhere they cost a few nanoseconds. See forebay.h.
 */
#ifndef FOREBAY_PHASE_HPP
#define FOREBAY_PHASE_HPP

#include <forebay/forebay.h>

namespace forebay {

/* A phase of the thread that makes the object, and that has to destroy it. */
class phase {
public:
    /* `name` is copied, its first 63 bytes are kept. */
    phase(forebay_session *session, const char *name) noexcept
        : session_(forebay_phase_begin(session, name) == 0 ? session : nullptr) {}
    ~phase() { end(); }

    phase(const phase &) = delete;
    phase &operator=(const phase &) = delete;

    /* Ends it before the object goes. */
    void end() noexcept {
        if (session_ != nullptr)
            forebay_phase_end(session_);
        session_ = nullptr;
    }

private:
    forebay_session *session_;
};

}  // namespace forebay

#endif
