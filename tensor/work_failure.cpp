// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/work_failure.h>

namespace millrace {

std::exception_ptr failure_of_work(const std::exception_ptr& error, const std::string& origin, const Place& place, int stream) {
  std::string where = " (" + (origin.empty() ? std::string() : origin + "; ") + "on " + place.to_string();
  if (stream >= 0) where += ", stream " + std::to_string(stream);
  where += ")";
  try {
    std::rethrow_exception(error);
  } catch (Error& known) {
    known.add_context(where);
    return error;
  } catch (const std::exception& other) {
    return std::make_exception_ptr(DeviceError(other.what() + where));
  } catch (...) {
    return std::make_exception_ptr(DeviceError("work failed with something that is no std::exception" + where));
  }
}

std::exception_ptr place_lost(const Place& place, const std::exception_ptr& cause) {
  return std::make_exception_ptr(PlaceLostError(place.to_string() + " is lost: " + text_of_error(cause)));
}

std::string text_of_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an error that is no std::exception";
  }
}

}  // namespace millrace
