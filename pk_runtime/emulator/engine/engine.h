// What every file of the engine sees; compiled once.
#pragma once

#include <pk/emulated/words.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "report.h"
