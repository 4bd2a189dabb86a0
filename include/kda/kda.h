/// Everything a user of the operator needs.
#pragma once

#include "kda/backend.h"
#include "kda/dims.h"
#include "kda/error.h"
#include "kda/ops/chunk.h"
#include "kda/ops/gate.h"
#include "kda/ops/l2norm.h"
#include "kda/ops/recurrent.h"
#include "kda/parallel.h"
#include "kda/tensor_view.h"
#include "kda/types.h"
#include "kda/version.h"
#include "kda/workspace.h"
