// A trace of a timing run, collected only when the request asks for it: what some blocks' workers do, and when the
// links and memories of every rank are busy. Bounded: a few blocks of each kind, neighbouring slices joined, and a
// largest number of slices, after which the rest is counted and left out.
#pragma once

namespace pk::sim {

struct fiber;

enum class port { link_out, link_in, hbm };

// A worker was busy with, or waited for, `what`; times in us.
void trace_worker(const fiber&, const char* what, double from, double to);

// A resource of a rank served `bytes` from `from` to `to`.
void trace_port(int rank, port, double from, double to, double bytes);

// Writes trace.json beside the report, if a trace was asked for.
void write_trace();

}  // namespace pk::sim
