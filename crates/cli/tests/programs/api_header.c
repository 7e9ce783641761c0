/* Each name of the header, as strict C has it. */
#include <forebay/forebay.h>

int all(forebay_session *session, forebay_file *file);

int all(forebay_session *session, forebay_file *file) {
    struct forebay_pool_info pool = {sizeof(struct forebay_pool_info), "", "", 0, 0, 0, 0, 0, 0, 0, 0};
    struct forebay_tier_info tier;
    struct forebay_safety_info safety;
    struct forebay_range range = {0, 1};
    struct forebay_extent extent = {0, 0, FOREBAY_TIER_STORE, 0, 0};
    int64_t sum = forebay_api_version() + FOREBAY_API_VERSION;
    struct forebay_analysis analysis = FOREBAY_ANALYSIS;
    struct forebay_operation operation = FOREBAY_OPERATION;
    struct forebay_action_info action;
    char names[1][FOREBAY_NAME];
    action.size = sizeof action;
    sum += forebay_analyse(session, &analysis) + forebay_operate(session, &operation);
    sum += forebay_action_remove(session, "") + forebay_actions(session, names, 1);
    sum += forebay_action(session, "", &action) + FOREBAY_ON_CLOSE + FOREBAY_ON_STEP;
    sum += FOREBAY_DRAIN_WITH + FOREBAY_DRAIN_AFTER;
    sum += FOREBAY_ACTION_ANALYSIS + FOREBAY_ACTION_OPERATION;
    tier.size = sizeof tier;
    safety.size = sizeof safety;
    sum += forebay_start(FOREBAY_REQUIRE, &session) + forebay_is_active(session);
    sum += forebay_pool(session, &pool) + forebay_tier(session, 0, &tier);
    sum += forebay_open(session, "", 0, 0, &file) + forebay_use_fd(session, 0, &file);
    sum += forebay_fd(file) + forebay_is_buffered(file) + forebay_size(file);
    sum += forebay_read(file, &range, 0, 0) + forebay_write(file, &range, 0, 0);
    sum += forebay_flush(file, FOREBAY_STORE) + forebay_wait(file, FOREBAY_DURABLE, -1);
    sum += forebay_is_safe(file, FOREBAY_STORE) + forebay_safety(file, &safety);
    sum += forebay_flush_all(session, FOREBAY_STORE) + forebay_wait_all(session, FOREBAY_STORE, 0);
    sum += forebay_hint(file, FOREBAY_HINT_NORMAL, 0, 0) + forebay_will_read(file, &range, 1);
    sum += forebay_hint(file, FOREBAY_HINT_RANDOM, 0, 0) + FOREBAY_HINT_SEQUENTIAL;
    sum += FOREBAY_HINT_WILLNEED + FOREBAY_HINT_DONTNEED;
    sum += forebay_placement(file, 0, 1, &extent, 1);
    sum += FOREBAY_WHERE_MEMORY + FOREBAY_WHERE_TIER + FOREBAY_WHERE_STORE;
    sum += FOREBAY_E_NOT_RUNNING + FOREBAY_E_NOT_BUFFERED + FOREBAY_E_CLOSED + FOREBAY_E_HANDLE;
    sum += FOREBAY_E_TOO_MANY + forebay_close(file) + forebay_end(session);
    return sum == 0 ? forebay_last_message()[0] : forebay_strerror(0)[0];
}
