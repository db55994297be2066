// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/trace/nvtx.h>

#include <map>
#include <mutex>
#include <string>

#include <nvtx3/nvToolsExt.h>

namespace millrace {
namespace {

class NvtxRanges final : public RangeSink {
 public:
  ~NvtxRanges() override { nvtxDomainDestroy(domain_); }

  std::uint64_t begin(const char* category, std::string_view name, std::int64_t step) override {
    const std::string text(name);
    const nvtxEventAttributes_t event = described(category, text, step);
    return nvtxDomainRangeStartEx(domain_, &event) + 1;  // a tool may number from 0
  }
  void end(std::uint64_t range) noexcept override { nvtxDomainRangeEnd(domain_, range - 1); }
  void mark(const char* category, std::string_view name, std::int64_t step) override {
    const std::string text(name);
    const nvtxEventAttributes_t event = described(category, text, step);
    nvtxDomainMarkEx(domain_, &event);
  }

 private:
  nvtxEventAttributes_t described(const char* category, const std::string& text, std::int64_t step) {
    nvtxEventAttributes_t event{};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.category = number_of(category);
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = text.c_str();
    if (step >= 0) {
      event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
      event.payload.llValue = step;
    }
    return event;
  }
  std::uint32_t number_of(const char* category) {
    const std::lock_guard lock(mutex_);
    const auto [at, added] = categories_.try_emplace(category, static_cast<std::uint32_t>(categories_.size() + 1));
    if (added) nvtxDomainNameCategoryA(domain_, at->second, category);
    return at->second;
  }

  const nvtxDomainHandle_t domain_ = nvtxDomainCreateA("millrace");
  std::mutex mutex_;
  std::map<std::string, std::uint32_t, std::less<>> categories_;
};

}  // namespace

std::shared_ptr<RangeSink> make_nvtx_ranges() { return std::make_shared<NvtxRanges>(); }

}  // namespace millrace
