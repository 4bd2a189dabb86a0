#include "support/device_tensor.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace kda::test {
namespace {

constexpr std::size_t kGuardBytes = 512;  // a multiple of kWorkspaceAlignment

// All ones is NaN in every floating type; an index of 0x7f7f... is out of every range.
unsigned char poison_byte(DType dtype) { return is_index(dtype) ? 0x7f : 0xff; }

struct Placement {
  std::vector<std::int64_t> stride;
  std::int64_t first = 0;  // element offset of [0,0,...]
  std::int64_t span = 0;   // elements from the first guard to the last
};

Placement place(const std::vector<std::int64_t>& shape, Layout layout) {
  const std::size_t rank = shape.size();
  std::vector<std::int64_t> extents = shape;  // of the buffer that the tensor is a part of
  std::vector<std::size_t> order(rank);       // dimensions from outermost to innermost
  std::iota(order.begin(), order.end(), std::size_t{0});
  Placement p;
  std::int64_t step = 1;
  switch (layout) {
    case Layout::kContiguous:
      break;
    case Layout::kFusedSlice:
    case Layout::kMisaligned: {
      const std::int64_t pad = layout == Layout::kFusedSlice ? 8 : 3;
      // Row starts stay 8 elements apart so that a fused slice keeps its 16-byte alignment.
      if (layout == Layout::kFusedSlice) extents[rank - 1] = (extents[rank - 1] + 7) / 8 * 8;
      extents[rank - 1] += pad;
      if (rank >= 3) extents[rank - 2] += 1;
      p.first = layout == Layout::kFusedSlice ? pad : 1;
      break;
    }
    case Layout::kHeadMajor:
      if (rank >= 3) std::swap(order[1], order[2]);
      break;
    case Layout::kLastStride2:
      step = 2;
      break;
    case Layout::kTransposed:
      std::swap(order[rank - 2], order[rank - 1]);
      break;
  }
  p.stride.assign(rank, 0);
  for (std::size_t i = rank; i-- > 0;) {
    p.stride[order[i]] = step;
    step *= std::max<std::int64_t>(extents[order[i]], 1);
  }
  p.span = p.first + step;
  return p;
}

}  // namespace

DeviceTensor::DeviceTensor(DeviceMemory& memory, DType dtype, std::vector<std::int64_t> shape,
                           Layout layout)
    : memory_(&memory) {
  const Placement p = place(shape, layout);
  const std::size_t element = size_of(dtype);
  const std::size_t bytes = 2 * kGuardBytes + static_cast<std::size_t>(p.span) * element;
  allocation_ = std::shared_ptr<void>(memory.allocate(bytes),
                                      [&memory](void* data) { memory.release(data); });
  first_byte_ = kGuardBytes + static_cast<std::size_t>(p.first) * element;
  view_.data = static_cast<unsigned char*>(allocation_.get()) + first_byte_;
  view_.dtype = dtype;
  view_.space = memory.space();
  view_.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view_.shape.begin());
  std::copy(p.stride.begin(), p.stride.end(), view_.stride.begin());
  image_.resize(bytes);
  poison();
}

std::vector<std::int64_t> DeviceTensor::element_offsets() const {
  std::vector<std::int64_t> offsets = {static_cast<std::int64_t>(first_byte_)};
  for (int dim = 0; dim < view_.rank; ++dim) {
    const auto d = static_cast<std::size_t>(dim);
    const std::int64_t step = view_.stride[d] * static_cast<std::int64_t>(size_of(view_.dtype));
    std::vector<std::int64_t> finer;
    finer.reserve(offsets.size() * static_cast<std::size_t>(view_.shape[d]));
    for (std::int64_t base : offsets) {
      for (std::int64_t i = 0; i < view_.shape[d]; ++i)
        finer.push_back(base + i * step);
    }
    offsets = std::move(finer);
  }
  return offsets;
}

void DeviceTensor::send_image() {
  memory_->upload(allocation_.get(), image_.data(), image_.size());
}

void DeviceTensor::poison() {
  std::fill(image_.begin(), image_.end(), poison_byte(view_.dtype));
  send_image();
}

void DeviceTensor::upload(const HostTensor& values) {
  std::size_t i = 0;
  for (std::int64_t offset : element_offsets()) {
    unsigned char* at = image_.data() + offset;
    const double value = values.data.at(i++);
    switch (view_.dtype) {
      case DType::kF64:
        std::memcpy(at, &value, sizeof(value));
        break;
      case DType::kF32: {
        const auto narrow = static_cast<float>(value);
        std::memcpy(at, &narrow, sizeof(narrow));
        break;
      }
      case DType::kBF16:
      case DType::kF16: {
        const auto narrow = static_cast<float>(value);
        const std::uint16_t stored =
            view_.dtype == DType::kBF16 ? core::float_to_bf16(narrow) : core::float_to_f16(narrow);
        std::memcpy(at, &stored, sizeof(stored));
        break;
      }
      default:
        break;
    }
  }
  send_image();
}

void DeviceTensor::upload(const std::vector<std::int64_t>& values) {
  std::size_t i = 0;
  for (std::int64_t offset : element_offsets()) {
    const std::int64_t value = values.at(i++);
    if (view_.dtype == DType::kI32) {
      const auto narrow = static_cast<std::int32_t>(value);
      std::memcpy(image_.data() + offset, &narrow, sizeof(narrow));
    } else {
      std::memcpy(image_.data() + offset, &value, sizeof(value));
    }
  }
  send_image();
}

std::vector<unsigned char> DeviceTensor::current_image() const {
  std::vector<unsigned char> image(image_.size());
  memory_->download(image.data(), allocation_.get(), image.size());
  return image;
}

HostTensor DeviceTensor::download() const {
  if (view_.rank == 0) return {};
  const std::vector<unsigned char> image = current_image();
  HostTensor out(std::vector<std::int64_t>(view_.shape.begin(), view_.shape.begin() + view_.rank));
  std::size_t i = 0;
  for (std::int64_t offset : element_offsets()) {
    const unsigned char* at = image.data() + offset;
    switch (view_.dtype) {
      case DType::kF64:
        std::memcpy(&out.data[i], at, sizeof(double));
        break;
      case DType::kF32: {
        float value = 0;
        std::memcpy(&value, at, sizeof(value));
        out.data[i] = value;
        break;
      }
      case DType::kBF16:
      case DType::kF16: {
        std::uint16_t stored = 0;
        std::memcpy(&stored, at, sizeof(stored));
        out.data[i] =
            view_.dtype == DType::kBF16 ? core::bf16_to_float(stored) : core::f16_to_float(stored);
        break;
      }
      default:
        break;
    }
    ++i;
  }
  return out;
}

std::vector<unsigned char> DeviceTensor::bits() const {
  const std::vector<unsigned char> image = current_image();
  const auto element = static_cast<std::int64_t>(size_of(view_.dtype));
  std::vector<unsigned char> out;
  for (std::int64_t offset : element_offsets()) {
    out.insert(out.end(), image.begin() + offset, image.begin() + offset + element);
  }
  return out;
}

std::string DeviceTensor::damage() const {
  if (view_.rank == 0) return {};
  std::vector<unsigned char> image = current_image();
  const auto element = static_cast<std::int64_t>(size_of(view_.dtype));
  for (std::int64_t offset : element_offsets()) {  // elements may change
    std::copy(image_.begin() + offset, image_.begin() + offset + element, image.begin() + offset);
  }
  const auto difference = std::mismatch(image.begin(), image.end(), image_.begin());
  if (difference.first == image.end()) return {};
  const auto byte = (difference.first - image.begin()) - static_cast<std::ptrdiff_t>(first_byte_);
  return "byte " + std::to_string(byte) +
         " from the first element was written, it is not part of the tensor";
}

bool DeviceTensor::changed() const { return view_.rank != 0 && current_image() != image_; }

}  // namespace kda::test
