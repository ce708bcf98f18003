// The learning rate as a function of consumed samples: it does not depend on layout,
// resumes or skipped steps.
#pragma once

#include "train/config.h"

namespace hearth {

// The rate of the step that starts after `done` steps' worth of samples (a fraction when the batch size
// changed):
//
//   warm-up    lr * (done + 1) / (warmup + 1) while done < warmup
//   constant   lr
//   linear     from lr to min_lr between warmup and the end
//   cosine     min_lr + (lr - min_lr) * (1 + cos(pi * progress)) / 2 (Loshchilov and Hutter 2017)
//   wsd        lr, then linearly to min_lr over the last decay_steps (a fifth of the run when 0)
// The end is decay_steps, or `steps` when that is 0; after it the rate stays at min_lr.  Every combination of
// warmup, steps and decay_steps is defined.
double learning_rate(const OptimizerConfig& config, int64_t steps, double done);

}  // namespace hearth
