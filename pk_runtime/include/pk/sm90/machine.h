// The Hopper half of pk.h.
#pragma once

#include <pk/sm90/entry.h>
