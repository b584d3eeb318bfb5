// Memory and mailbox of a TGN on a card. The twins are src/model/tgn/updater.rs, src/model/remember.rs and
// src/model/memory.rs.
//
//   message_rows    messages[i] = [s_u ; s_v ; e ; cos(w (t - tau_u) + b)]      own[i] = s_u       u = nodes[i]
//   fresh_rows      fresh[i] = updated[from[i]], or the memory of nodes[i] where from[i] names no row
//   remember_rows   memory of nodes[i] = fresh[rows[i]], at the time of its mail; nothing where rows[i] names no row
//   post_messages   mail of nodes[i] = memory of the other end of events[last[i]], with its time
//
// In a step they run in this order: a batch's messages are built when all its rows are written, so both ends of an event
// get the other's row as it is after the batch. The host says which nodes have a mail, and which event of a node is its
// last (by time, then by edge); no node is named twice. s_v is what lies in the mailbox, tau_u when u was last updated
// or, if never, `origin`. A row with a value that is not finite is not written, and counted in *refused, a number that
// the caller has set. Nodes, rows and events that there are not are left out.
//
// memory, mails f32 [nodes, width]; own, updated, fresh f32 [.., width]; messages f32 [.., 2 width + features + time].
//
// Launch: blocks of 256 threads, a warp to a row; any grid. Rows are read once and written once, 128 bytes per step of
// a warp: bound by memory, and for some hundred rows by the latency of nodes, rows and their values one after the
// other.
//
// Nothing is added up: the processor's bits.
//
// Registers by NVRTC 13.0, sm_80/sm_90: fresh_rows 20/20, message_rows 32/32, post_messages 19/24, remember_rows
// 19/20. No spills.
// Not verified on a GPU.
#include "memory.cuh"

extern "C" __global__ void __launch_bounds__(256) message_rows(NodeTable table, const u32* nodes, u64 count,
                                                               MailFeatures features, const float* w, const float* b,
                                                               u32 time, i64 origin, float* messages, float* own) {
    u32 lane = threadIdx.x & 31;
    u64 columns = 2 * (u64)table.width + features.columns + time;
    for (u64 i = THREAD_OF_GRID / 32; i < count; i += THREADS_OF_GRID / 32) {
        u64 node = nodes[i];
        bool there = node < table.nodes;
        float* message = messages + i * columns;
        for (u32 c = lane; c < table.width; c += 32) {
            float value = there ? table.memory[node * table.width + c] : 0.0f;
            put(own + i * table.width + c, value);
            put(message + c, value);
            put(message + table.width + c, there ? table.mails[node * table.width + c] : 0.0f);
        }
        message += 2 * table.width;
        u64 row = features.columns == 0 ? 0 : features.rows[i];
        for (u32 c = lane; c < features.columns; c += 32) {
            put(message + c, row < features.count ? features.table[row * features.columns + c] : 0.0f);
        }
        message += features.columns;
        i64 before = there ? table.updated[node] : 0, now = there ? table.mail_times[node] : 0;
        float delta = between(now, before == NEVER ? origin : before);
        for (u32 c = lane; c < time; c += 32) {
            put(message + c, encoded(w[c], delta, b[c]));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) fresh_rows(NodeTable table, const u32* nodes, const u32* from,
                                                             u64 count, const float* updated, u32 updated_rows,
                                                             float* fresh) {
    for (u64 i = THREAD_OF_GRID / 32; i < count; i += THREADS_OF_GRID / 32) {
        u64 node = nodes[i], row = from[i];
        const float* source = row < updated_rows    ? updated + row * table.width
                              : node < table.nodes ? table.memory + node * table.width
                                                   : nullptr;
        for (u32 c = threadIdx.x & 31; c < table.width; c += 32) {
            put(fresh + i * table.width + c, source == nullptr ? 0.0f : source[c]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) remember_rows(NodeTable table, const u32* nodes, const u32* rows,
                                                                u64 count, const float* fresh, u32 fresh_count,
                                                                u32* refused) {
    u32 lane = threadIdx.x & 31;
    for (u64 i = THREAD_OF_GRID / 32; i < count; i += THREADS_OF_GRID / 32) {
        u64 node = nodes[i], number = rows[i];
        if (node >= table.nodes || number >= fresh_count) {
            continue;
        }
        const float* row = fresh + number * table.width;
        bool finite = true;
        for (u32 c = lane; c < table.width; c += 32) {
            finite = finite && is_finite(row[c]);
        }
        if (!__all_sync(0xFFFFFFFFu, finite)) {
            if (lane == 0) {
                atomicAdd(refused, 1u);
            }
            continue;
        }
        for (u32 c = lane; c < table.width; c += 32) {
            put(table.memory + node * table.width + c, row[c]);
        }
        if (lane == 0) {
            put(table.updated + node, max64(table.updated[node], table.mail_times[node]));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) post_messages(NodeTable table, Events events, const u32* nodes,
                                                                const u32* last, u64 count) {
    u32 lane = threadIdx.x & 31;
    for (u64 i = THREAD_OF_GRID / 32; i < count; i += THREADS_OF_GRID / 32) {
        u64 node = nodes[i], event = last[i];
        if (node >= table.nodes || event >= events.count) {
            continue;
        }
        u64 other = events.src[event] == node ? events.dst[event] : events.src[event];
        const float* row = other < table.nodes ? table.memory + other * table.width : nullptr;
        for (u32 c = lane; c < table.width; c += 32) {
            put(table.mails + node * table.width + c, row == nullptr ? 0.0f : row[c]);
        }
        if (lane == 0) {
            put(table.mail_times + node, events.times[event]);
        }
    }
}
