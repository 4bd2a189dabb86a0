#include "model/kernels/short_conv.h"

#include "model/kernels/storage.h"
#include "model/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/short_conv.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "model/kernels/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::model::HWY_NAMESPACE {

// The vectors run over channels and the inner loop over time, so that the last W inputs, the taps
// and the sums stay in registers and every element is loaded once.

template <class T, class D, int W, class S>
HWY_INLINE void load_history(D d, const ShortConvForward& a, const ConvPiece& piece, std::int64_t c,
                             hn::Vec<D> (&past)[W - 1]) {
  for (int r = 0; r < W - 1; ++r) {
    const std::int64_t back = W - 1 - r;  // this row lies `back` rows before the piece
    if (back <= piece.before) {
      past[r] = load(d, static_cast<const S*>(a.x) + (piece.begin - back) * a.x_stride + c);
    } else if (a.window != nullptr) {
      const T* window = static_cast<const T*>(a.window) + piece.sequence * a.window_sequence_stride;
      past[r] = load(d, window + (piece.before + r) * a.window_row_stride + c);
    } else {
      past[r] = hn::Zero(d);
    }
  }
}

// Convolution at the current row, then the row joins the history.
template <class D, int W>
HWY_INLINE hn::Vec<D> convolve(hn::Vec<D> x, const hn::Vec<D> (&tap)[W],
                               const hn::Vec<D> (&past)[W - 1]) {
  auto z = hn::Mul(tap[W - 1], x);
  for (int j = 0; j < W - 1; ++j)
    z = hn::MulAdd(tap[j], past[j], z);
  return z;
}

template <class V, int N>
HWY_INLINE void push(V (&history)[N], V newest) {
  for (int j = 0; j + 1 < N; ++j)
    history[j] = history[j + 1];
  history[N - 1] = newest;
}

template <class S, class T, int W>
void forward_piece(const ShortConvForward& a, const T* taps, const ConvPiece& piece) {
  const std::int64_t channels = a.channels;
  const S* x = static_cast<const S*>(a.x) + piece.begin * a.x_stride;
  S* y = static_cast<S*>(a.y) + piece.begin * channels;
  for_each_vector<T>(channels, [&](auto d, std::int64_t c) HWY_ATTR {
    using D = decltype(d);
    hn::Vec<D> tap[W];
    hn::Vec<D> past[W - 1];
    for (int j = 0; j < W; ++j)
      tap[j] = load(d, taps + j * channels + c);
    load_history<T, D, W, S>(d, a, piece, c, past);
    for (std::int64_t i = 0; i < piece.count; ++i) {
      const auto now = load(d, x + i * a.x_stride + c);
      const auto z = convolve<D, W>(now, tap, past);
      store(d, hn::Mul(z, sigmoid(d, z)), y + i * channels + c);
      push(past, now);
    }
  });
}

// dz_t = dy_t silu'(z_t); dx_t = sum_j tap_j dz_{t+W-1-j}; dtap_j = sum_t dz_t x_{t-W+1+j}.
template <class S, class T, int W>
void backward_piece(const ShortConvBackward& b, const T* taps, T* dtaps, const ConvPiece& piece) {
  const ShortConvForward& a = b.forward;
  const std::int64_t channels = a.channels;
  const S* x = static_cast<const S*>(a.x) + piece.begin * a.x_stride;
  const S* dy = static_cast<const S*>(b.dy) + piece.begin * b.dy_stride;
  S* dx = static_cast<S*>(b.dx) + piece.begin * channels;
  const std::int64_t following = piece.after < W - 1 ? piece.after : W - 1;
  for_each_vector<T>(channels, [&](auto d, std::int64_t c) HWY_ATTR {
    using D = decltype(d);
    const auto one = hn::Set(d, T(1));
    hn::Vec<D> tap[W];
    hn::Vec<D> dtap[W];
    hn::Vec<D> past[W - 1];
    hn::Vec<D> dz_past[W - 1];
    for (int j = 0; j < W; ++j)
      tap[j] = load(d, taps + j * channels + c);
    for (int j = 0; j < W; ++j)
      dtap[j] = hn::Zero(d);
    for (int j = 0; j < W - 1; ++j)
      dz_past[j] = hn::Zero(d);
    load_history<T, D, W, S>(d, a, piece, c, past);

    const auto dz_at = [&](std::int64_t i, hn::Vec<D> now) HWY_ATTR {
      const auto z = convolve<D, W>(now, tap, past);
      const auto s = sigmoid(d, z);
      const auto slope = hn::Mul(s, hn::MulAdd(z, hn::Sub(one, s), one));
      return hn::Mul(load(d, dy + i * b.dy_stride + c), slope);
    };
    const auto emit = [&](std::int64_t row, hn::Vec<D> dz) HWY_ATTR {
      auto sum = hn::Mul(tap[0], dz);
      for (int k = 0; k < W - 1; ++k)
        sum = hn::MulAdd(tap[W - 1 - k], dz_past[k], sum);
      store(d, sum, dx + row * channels + c);
    };

    for (std::int64_t i = 0; i < piece.count; ++i) {
      const auto now = load(d, x + i * a.x_stride + c);
      const auto dz = dz_at(i, now);
      for (int j = 0; j < W - 1; ++j)
        dtap[j] = hn::MulAdd(dz, past[j], dtap[j]);
      dtap[W - 1] = hn::MulAdd(dz, now, dtap[W - 1]);
      if (i >= W - 1) emit(i - (W - 1), dz);
      push(past, now);
      push(dz_past, dz);
    }
    // The last rows also reach into the next piece of the sequence, whose dz is computed again.
    for (std::int64_t k = 0; k < W - 1; ++k) {
      const std::int64_t i = piece.count + k;
      auto dz = hn::Zero(d);
      if (k < following) {
        const auto now = load(d, x + i * a.x_stride + c);
        dz = dz_at(i, now);
        push(past, now);
      }
      if (i >= W - 1) emit(i - (W - 1), dz);
      push(dz_past, dz);
    }
    for (int j = 0; j < W; ++j)
      store(d, dtap[j], dtaps + j * channels + c);
  });
}

template <class S, class T>
void forward_typed(const ShortConvForward& a, const T* taps, const ConvPiece& piece) {
  switch (a.width) {
    case 2:
      return forward_piece<S, T, 2>(a, taps, piece);
    case 3:
      return forward_piece<S, T, 3>(a, taps, piece);
    default:
      return forward_piece<S, T, 4>(a, taps, piece);
  }
}

template <class S, class T>
void backward_typed(const ShortConvBackward& b, const T* taps, T* dtaps, const ConvPiece& piece) {
  switch (b.forward.width) {
    case 2:
      return backward_piece<S, T, 2>(b, taps, dtaps, piece);
    case 3:
      return backward_piece<S, T, 3>(b, taps, dtaps, piece);
    default:
      return backward_piece<S, T, 4>(b, taps, dtaps, piece);
  }
}

void conv_forward_target(const ShortConvForward& a, const void* taps, const ConvPiece& piece) {
  with_storage(a.storage, [&]<class S, class T>(S, T) {
    forward_typed<S, T>(a, static_cast<const T*>(taps), piece);
  });
}

void conv_backward_target(const ShortConvBackward& b, const void* taps, void* dtaps,
                          const ConvPiece& piece) {
  with_storage(b.forward.storage, [&]<class S, class T>(S, T) {
    backward_typed<S, T>(b, static_cast<const T*>(taps), static_cast<T*>(dtaps), piece);
  });
}

}  // namespace kda::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cstddef>

#include "kda/parallel.h"

namespace kda::model {
namespace {

HWY_EXPORT(conv_forward_target);
HWY_EXPORT(conv_backward_target);

// [C,W] to [W,C]: the kernels want neighbouring channels side by side.
template <class T>
std::vector<T> transposed(const void* weight, std::int64_t channels, int width) {
  const T* w = static_cast<const T*>(weight);
  std::vector<T> taps(static_cast<std::size_t>(channels * width));
  for (std::int64_t c = 0; c < channels; ++c) {
    for (int j = 0; j < width; ++j)
      taps[static_cast<std::size_t>(j * channels + c)] = w[c * width + j];
  }
  return taps;
}

}  // namespace

std::vector<ConvPiece> conv_pieces(std::span<const std::int64_t> cu_seqlens) {
  constexpr std::int64_t kPieceTokens = 128;
  std::vector<ConvPiece> pieces;
  for (std::size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
    const std::int64_t start = cu_seqlens[n];
    const std::int64_t end = cu_seqlens[n + 1];
    for (std::int64_t begin = start; begin < end; begin += kPieceTokens) {
      const std::int64_t count = std::min(kPieceTokens, end - begin);
      pieces.push_back(
          {begin, count, begin - start, end - begin - count, static_cast<std::int64_t>(n)});
    }
  }
  return pieces;
}

void short_conv_forward(const ShortConvForward& args) {
  const auto pieces = conv_pieces(args.cu_seqlens);
  const auto num_pieces = static_cast<std::int64_t>(pieces.size());
  with_storage(args.storage, [&]<class S, class T>(S, T) {
    const auto taps = transposed<T>(args.weight, args.channels, args.width);
    const bool threads = worth_threads(args.cu_seqlens.back() * args.channels);
#pragma omp parallel for schedule(static) num_threads(num_threads()) if (threads)
    for (std::int64_t i = 0; i < num_pieces; ++i) {
      HWY_DYNAMIC_DISPATCH(conv_forward_target)
      (args, taps.data(), pieces[static_cast<std::size_t>(i)]);
    }
  });
}

void short_conv_backward(const ShortConvBackward& args) {
  const ShortConvForward& forward = args.forward;
  const auto pieces = conv_pieces(forward.cu_seqlens);
  const auto num_pieces = static_cast<std::int64_t>(pieces.size());
  const std::int64_t size = forward.channels * forward.width;
  with_storage(forward.storage, [&]<class S, class T>(S, T) {
    const auto taps = transposed<T>(forward.weight, forward.channels, forward.width);
    std::vector<T> partial(static_cast<std::size_t>(num_pieces * size));
    const bool threads = worth_threads(forward.cu_seqlens.back() * forward.channels);
#pragma omp parallel for schedule(static) num_threads(num_threads()) if (threads)
    for (std::int64_t i = 0; i < num_pieces; ++i) {
      HWY_DYNAMIC_DISPATCH(conv_backward_target)
      (args, taps.data(), partial.data() + i * size, pieces[static_cast<std::size_t>(i)]);
    }
    std::vector<T> sum(static_cast<std::size_t>(size));  // in piece order: reproducible
    for (std::int64_t i = 0; i < num_pieces; ++i) {
      const T* part = partial.data() + i * size;
      for (std::int64_t e = 0; e < size; ++e)
        sum[static_cast<std::size_t>(e)] += part[e];
    }
    T* dweight = static_cast<T*>(args.dweight);
    for (std::int64_t c = 0; c < forward.channels; ++c) {
      for (int j = 0; j < forward.width; ++j) {
        dweight[c * forward.width + j] = sum[static_cast<std::size_t>(j * forward.channels + c)];
      }
    }
  });
}

}  // namespace kda::model
#endif
