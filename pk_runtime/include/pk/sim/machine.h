// The simulator half of pk.h.
#pragma once

#include <pk/sim/launch.h>
