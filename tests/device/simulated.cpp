// An accelerator of torch's PrivateUse1 kind whose memory is the host's and whose kernels are the
// CPU's, so that autograd's engine runs backward nodes in a thread for each device, as on CUDA.
//
// The library needs no Python: what it tells is in the functions at its end, for ctypes.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <string>

namespace simulated {
using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::Storage;
using c10::Stream;

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
constexpr int MOST = 8;  // devices

std::atomic<int> devices{1};
std::array<std::atomic<int64_t>, MOST> in_use{};
std::array<std::atomic<int64_t>, MOST> peak{};
std::atomic<int64_t> waits{0}, downloads{0};
std::atomic<bool> forbidden{false};
std::atomic<c10::StreamId> streams_made{0};
std::atomic<int64_t> limit{std::numeric_limits<int64_t>::max()};
thread_local DeviceIndex current = 0;
thread_local std::array<c10::StreamId, MOST> current_stream{};

// What makes the host wait for a real device: it is counted, and refused where that was asked for.
void host_waits(std::atomic<int64_t>& counter, const std::string& what) {
  ++counter;
  TORCH_CHECK(!forbidden, "the host waits for the simulated device: ", what);
}

bool is_ours(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == TYPE; }
Device indexed(Device device) { return device.has_index() ? device : Device(TYPE, current); }

// ---- memory -------------------------------------------------------------------------------------

// A storage of one side lives as long as the one of the other side that shares its memory.
struct Other {
  Storage storage;
  int64_t bytes;
  DeviceIndex index;
};

void release(void* pointer) {
  auto* other = static_cast<Other*>(pointer);
  in_use[other->index] -= other->bytes;
  delete other;
}

c10::DataPtr as_device_memory(const Storage& host, DeviceIndex index) {
  const auto bytes = static_cast<int64_t>(host.nbytes());
  const int64_t now = in_use[index] += bytes;
  for (int64_t most = peak[index]; most < now && !peak[index].compare_exchange_weak(most, now);) {}
  return {host.mutable_data(), new Other{host, bytes, index}, &release, Device(TYPE, index)};
}

c10::DataPtr as_host_memory(const Storage& ours) {
  return {ours.mutable_data(), new Other{ours, 0, 0}, &release, Device(c10::kCPU)};
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK_WITH(OutOfMemoryError, in_use[current] + static_cast<int64_t>(bytes) <= limit,
                     "simulated out of memory. Tried to allocate ", bytes, " bytes.");
    Storage host(Storage::use_byte_size_t(), bytes, c10::GetAllocator(c10::kCPU), true);
    return as_device_memory(host, current);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
} allocator;
REGISTER_ALLOCATOR(TYPE, &allocator)

// ---- devices and streams ------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = TYPE;
  c10::DeviceType type() const override { return TYPE; }
  Device getDevice() const override { return {TYPE, current}; }
  Device exchangeDevice(Device to) const override {
    return {TYPE, std::exchange(current, indexed(to).index())};
  }
  void setDevice(Device to) const override { current = indexed(to).index(); }
  void uncheckedSetDevice(Device to) const noexcept override { current = indexed(to).index(); }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(devices); }

  static Stream stream(Device device, c10::StreamId id) {
    return Stream(Stream::UNSAFE, indexed(device), id);
  }
  Stream getStream(Device d) const override { return stream(d, current_stream[indexed(d).index()]); }
  Stream getDefaultStream(Device d) const override { return stream(d, 0); }
  Stream getNewStream(Device d, int) const override { return stream(d, ++streams_made); }
  Stream exchangeStream(Stream to) const override {
    return stream(to.device(), std::exchange(current_stream[to.device_index()], to.id()));
  }
  // The kernels run at once, so whatever an event stands for has happened.
  void record(void**, const Stream&, DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { host_waits(waits, "an event"); }
  void synchronizeStream(const Stream&) const override { host_waits(waits, "a stream"); }
  void synchronizeDevice(DeviceIndex) const override { host_waits(waits, "the whole device"); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(devices); }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex to) const override { current = to; }
  DeviceIndex exchangeDevice(DeviceIndex to) const override { return std::exchange(current, to); }
  DeviceIndex maybeExchangeDevice(DeviceIndex to) const override {
    return std::exchange(current, to < 0 ? current : to);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    return at::globalContext().defaultGenerator(c10::kCPU);  // so both sides draw equal numbers
  }
} hooks;
const bool registered = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

// ---- operators ----------------------------------------------------------------------------------

Tensor over(const Storage& storage, const Tensor& like, DispatchKey key) {
  auto keys = c10::DispatchKeySet(key);
  if (like._is_zerotensor()) keys = keys.add(DispatchKey::ZeroTensor);  // it has no memory
  auto made = at::detail::make_tensor<c10::TensorImpl>(Storage(storage), keys, like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  impl->_set_conj(like.is_conj());
  impl->_set_neg(like.is_neg());
  return made;
}

// One operator's call: every tensor of the device has a twin on the CPU, over the same memory.
class Call {
 public:
  Tensor on_host(const Tensor& tensor) {
    if (!is_ours(tensor)) return tensor;
    index_ = tensor.device().index();
    for (const auto& [ours, host] : tensors_) {
      if (ours.is_same(tensor)) return host;
    }
    for (const auto& [ours, host] : storages_) {
      if (ours.is_alias_of(tensor.storage())) return add(tensor, over(host, tensor, DispatchKey::CPU));
    }
    Storage host(Storage::use_byte_size_t(), tensor.storage().nbytes(), as_host_memory(tensor.storage()),
                 c10::GetAllocator(c10::kCPU), true);
    storages_.emplace_back(tensor.storage(), host);
    return add(tensor, over(host, tensor, DispatchKey::CPU));
  }

  Tensor on_device(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != c10::kStrided) return tensor;
    for (const auto& [ours, host] : tensors_) {
      if (host.is_same(tensor)) return ours;
    }
    for (const auto& [ours, host] : storages_) {
      if (host.is_alias_of(tensor.storage())) return over(ours, tensor, DispatchKey::PrivateUse1);
    }
    Storage ours(Storage::use_byte_size_t(), tensor.storage().nbytes(),
                 as_device_memory(tensor.storage(), index_), &allocator, true);
    storages_.emplace_back(ours, tensor.storage());
    return over(ours, tensor, DispatchKey::PrivateUse1);
  }

  c10::IValue argument(const c10::IValue& value) {
    if (value.isDevice() && value.toDevice().type() == TYPE) {
      index_ = indexed(value.toDevice()).index();
      return Device(c10::kCPU);
    }
    return each(value, [this](const Tensor& tensor) { return on_host(tensor); });
  }
  c10::IValue result(const c10::IValue& value) {
    return each(value, [this](const Tensor& tensor) { return on_device(tensor); });
  }

  // An operator may have given its arguments other memory, or another shape.
  void update_arguments() {
    for (auto& [ours, host] : storages_) {
      if (ours.data() == host.data() && ours.nbytes() == host.nbytes()) continue;
      ours.set_data_ptr(as_device_memory(host, index_));
      ours.set_nbytes(host.nbytes());
    }
    for (auto& [ours, host] : tensors_) {
      if (ours.sizes() == host.sizes() && ours.strides() == host.strides()) continue;
      ours.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }

 private:
  Tensor add(const Tensor& ours, const Tensor& host) { return tensors_.emplace_back(ours, host).second; }

  template <class Change>
  static c10::IValue each(const c10::IValue& value, Change change) {
    if (value.isTensor()) return change(value.toTensor());
    if (value.isTensorList()) {
      auto list = value.toTensorVector();
      std::transform(list.begin(), list.end(), list.begin(), change);
      return list;
    }
    if (value.isOptionalTensorList()) {
      auto list = value.toOptionalTensorVector();
      for (auto& tensor : list) {
        if (tensor) tensor = change(*tensor);
      }
      return list;
    }
    return value;
  }

  std::vector<std::pair<Storage, Storage>> storages_;  // of the device, of the host
  std::vector<std::pair<Tensor, Tensor>> tensors_;
  DeviceIndex index_ = current;
};

// Their results, or the sizes of these, depend on values: CUDA copies those to the host and waits.
const std::set<std::string> READ_VALUES = {
    "aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select",
    "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    "aten::_linalg_check_errors",
};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  if (READ_VALUES.count(schema.name())) host_waits(waits, schema.name());
  Call call;
  for (auto i = stack->size() - schema.arguments().size(); i < stack->size(); ++i) {
    (*stack)[i] = call.argument((*stack)[i]);
  }
  op.callBoxed(stack);
  call.update_arguments();
  for (auto i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = call.result((*stack)[i]);
  }
}

using Dtype = std::optional<c10::ScalarType>;
using Layout = std::optional<c10::Layout>;
using Flag = std::optional<bool>;
constexpr c10::DispatchKeySet KEYS(DispatchKey::PrivateUse1);

Tensor empty(at::IntArrayRef size, Dtype dtype, Layout, std::optional<Device> device, Flag,
             std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, &allocator, KEYS, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, Dtype dtype, Layout,
                     std::optional<Device> device, Flag) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, &allocator, KEYS, c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  if (is_ours(from) && !is_ours(to)) host_waits(downloads, "a copy to the host");
  Call call;
  call.on_host(to).copy_(call.on_host(from));
  return to;
}

// Attention by plain operators, as the CPU's fused one is not a kernel of this device.
int64_t choose_attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&,
                         double, bool, std::optional<double>, bool) {
  return 0;
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                   bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  Call call;
  std::optional<Tensor> added;
  if (bias && bias->defined()) added = call.on_host(*bias);
  return call.on_device(at::convolution_symint(call.on_host(input), call.on_host(weight), added, stride,
                                               padding, dilation, transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> mask) {
  Call call;
  const std::vector<c10::SymInt> bias{transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward_symint(
      call.on_host(grad), call.on_host(input), call.on_host(weight), c10::SymIntArrayRef(bias), stride,
      padding, dilation, transposed, output_padding, groups, mask);
  return {call.on_device(of_input), call.on_device(of_weight), call.on_device(of_bias)};
}

// Off the CPU torch asks for fused cells. These are made of operators, which autograd knows.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& before,
                                             const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias) {
  auto sum = input + hidden;
  if (input_bias && input_bias->defined()) sum = sum + *input_bias + *hidden_bias;
  const auto gate = sum.chunk(4, -1);
  const auto cell = gate[1].sigmoid() * before + gate[0].sigmoid() * gate[2].tanh();
  return {gate[3].sigmoid() * cell.tanh(), cell, at::empty({0}, input.options())};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& before,
                                    const std::optional<Tensor>& input_bias,
                                    const std::optional<Tensor>& hidden_bias) {
  const bool biased = input_bias && input_bias->defined();
  const auto of_input = (biased ? input + *input_bias : input).chunk(3, -1);
  const auto of_hidden = (biased ? hidden + *hidden_bias : hidden).chunk(3, -1);
  const auto reset = (of_input[0] + of_hidden[0]).sigmoid();
  const auto update = (of_input[1] + of_hidden[1]).sigmoid();
  const auto fresh = (of_input[2] + reset * of_hidden[2]).tanh();
  return {(before - fresh) * update + fresh, at::empty({0}, input.options())};
}

}  // namespace simulated

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&simulated::run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", simulated::empty);
  library.impl("empty_strided", simulated::empty_strided);
  library.impl("_copy_from", simulated::copy_from);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("resize_", at::native::resize_);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("set_.source_Storage", at::native::set_);
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  library.impl("_fused_sdp_choice", simulated::choose_attention);
  library.impl("convolution_overrideable", simulated::convolution);
  library.impl("convolution_backward_overrideable", simulated::convolution_backward);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("_thnn_fused_lstm_cell", simulated::lstm_cell);
  library.impl("_thnn_fused_gru_cell", simulated::gru_cell);
}

// The host's copy minds the bits; torch's own way would resolve them by another copy, without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
}

extern "C" {
void simulated_begin(int devices) { simulated::devices = std::min(devices, simulated::MOST); }
int simulated_current() { return simulated::current; }
void simulated_set_current(int index) { simulated::current = static_cast<c10::DeviceIndex>(index); }
int64_t simulated_memory(int index) { return simulated::in_use[index]; }
int64_t simulated_peak(int index) { return simulated::peak[index]; }
int64_t simulated_waits() { return simulated::waits; }
int64_t simulated_downloads() { return simulated::downloads; }
void simulated_limit(int64_t bytes) { simulated::limit = bytes; }
void simulated_forbid(int is_on) { simulated::forbidden = is_on; }
}
