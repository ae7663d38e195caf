// A trace of a timing run, collected only when the request asks for it: what the workers of some blocks do, and how
// busy the links and the memory of every rank are. Bounded: a few blocks of each kind, neighbouring slices joined, a
// largest number of slices, after which the rest is counted and left out; ports by intervals that get longer.
#pragma once

namespace pk::sim {

struct fiber;

enum class port { link_out, link_in, hbm };
inline constexpr int ports = 3;

// A worker was busy with, or waited for, `what`; times in us.
void trace_worker(const fiber&, const char* what, double from, double to);

// A port of a rank moved `bytes`, evenly, from `from` to `to`; alone it would have taken `busy` us for them.
void trace_port(int rank, port, double from, double to, double busy, double bytes);

// Writes trace.json beside the report, if a trace was asked for.
void write_trace();

}  // namespace pk::sim
