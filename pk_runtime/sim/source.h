// Where in the kernel's source a role stands when it calls the engine. Nothing is written in the API for that:
// the kernel is compiled with frame pointers and line tables, and the return addresses are looked up only when
// something is reported, outside, by whoever reads the report.
#pragma once

#include <cstdint>
#include <string>

namespace pk::sim {

struct fiber;

// Number of a chain of calls that led from a role into the engine; 0 is none.
using site = std::uint32_t;

site site_of(const fiber&, void* const* frame);

// For report.json: a mark that the reader replaces by " (FILE:LINE)", or by nothing when it cannot tell.
std::string mark_of(site);

}  // namespace pk::sim

// At the head of each function of the engine that kernels call: notes in `f` from where.
#define PK_SIM_NOTE_SITE(f) ((f).at = ::pk::sim::site_of((f), static_cast<void* const*>(__builtin_frame_address(0))))
