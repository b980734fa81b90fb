#include "worker/channel_address.h"

#include <sodium.h>

#include <algorithm>
#include <array>

#include "base/strings.h"

namespace ckpt {
namespace {

constexpr std::string_view kScheme = "ipc://@";
constexpr std::string_view kVersionEnd = ".v2.sock";
constexpr std::string_view kNativeEnd = ".native";
/// sun_path has 108 bytes, the first of which marks the name as abstract.
constexpr std::size_t kNameLimit = 107;
/// Leaves room for any rank and epoch.
constexpr std::size_t kJobLimit = 40;
constexpr std::size_t kHashDigits = 16;

bool is_plain(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
         c == '_' || c == '-';
}

std::string hash_digits(std::string_view text) {
  std::array<unsigned char, crypto_generichash_BYTES_MIN> hash;
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(text.data()),
                     text.size(), nullptr, 0);
  std::string digits;
  for (std::size_t i = 0; i < kHashDigits / 2; ++i) {
    digits += "0123456789abcdef"[hash[i] >> 4];
    digits += "0123456789abcdef"[hash[i] & 15];
  }
  return digits;
}

std::string short_job(std::string_view job) {
  if (job.size() <= kJobLimit && std::all_of(job.begin(), job.end(), is_plain)) {
    return std::string(job);
  }
  std::string text(job.substr(0, kJobLimit - kHashDigits - 1));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return !is_plain(c); }, '_');
  return concat(text, "~", hash_digits(job));
}

}  // namespace

std::string channel_address(std::string_view job, int rank, std::uint64_t epoch) {
  return concat(kScheme, "checkpoint-engine-", short_job(job), "-", rank, "-", epoch, kVersionEnd);
}

Result<std::string> native_address(const std::string& address) {
  if (!address.starts_with(kScheme) || !address.ends_with(kVersionEnd)) {
    return unsupported(
        concat(quoted(address), " is no address of a native channel (ipc://@...", kVersionEnd,
               "): the rank is of the Python package, use the worker of that package"));
  }
  std::string native = concat(address, kNativeEnd);
  CKPT_RETURN_IF_ERROR(abstract_name(native).status());
  return native;
}

Result<std::string> abstract_name(const std::string& address) {
  if (!address.starts_with(kScheme) || address.size() == kScheme.size()) {
    return invalid_argument(concat(quoted(address), " is no address of the form ipc://@name"));
  }
  std::string name = address.substr(kScheme.size());
  if (name.size() + 1 > kNameLimit) {
    return invalid_argument(concat("the socket name of ", quoted(address), " has ", name.size() + 1,
                                   " bytes, ", kNameLimit,
                                   " is the limit; use a shorter job name"));
  }
  return name;
}

}  // namespace ckpt
