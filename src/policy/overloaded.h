// A visitor made of lambdas, for std::visit over events and actions: one that is missing does not compile.
#pragma once

namespace nvshare::policy {

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;  // clang 14 does not deduce it by itself

}  // namespace nvshare::policy
