// CUDA's header of the same name: what it declares for kernels is there without it.
#pragma once
