// How TMA loads announce themselves at an mbarrier.
#pragma once

#include "emulator/block.h"

namespace hearth::emulator {

void begin_delivery(Block& block, uint32_t barrier, Site site);
void deliver(Block& block, uint32_t barrier, uint32_t bytes);

}  // namespace hearth::emulator
