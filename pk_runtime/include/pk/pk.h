// pkforge runtime: tiles, peers, signals and four roles, one source for two machines.
//
// nvcc builds a kernel for a GPU (sm_90a); any other compiler builds the same file for the simulator.
// Both halves define the same names; what they mean is in docs/pk_guide.md.
#pragma once

#include <pk/common/knob.h>
#include <pk/common/coord.h>

#if defined(__CUDACC__)
#include <pk/sm90/machine.h>
#else
#include <pk/sim/machine.h>
#endif

#include <pk/common/schedule.h>
#include <pk/common/gemm.h>
#include <pk/common/reduce.h>
#include <pk/common/copy.h>
#include <pk/common/direct.h>
