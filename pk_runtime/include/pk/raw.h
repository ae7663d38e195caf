// pkforge runtime for raw CUDA candidates: the peers' pointers and nothing else. docs/raw_cuda.md explains it.
#pragma once

#if !defined(__CUDACC__)
#error "a raw candidate is built by nvcc for a GPU; the simulator runs kernels that include <pk/pk.h>"
#endif

#include <pk/common/knob.h>
#include <pk/sm90/raw.h>
