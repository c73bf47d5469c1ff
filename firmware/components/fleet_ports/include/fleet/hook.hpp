// SPDX-License-Identifier: Apache-2.0
// Callables that cost little flash: std::function brings a copier and a
// destructor for every lambda, some 100 bytes each on rv32.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace fleet {

template <typename>
class Hook;

// A Hook keeps a lambda that holds no more than two pointers or numbers, such
// as [this]; larger ones do not compile. It copies like a number.
template <typename R, typename... Args>
class Hook<R(Args...)> {
public:
    Hook() = default;
    Hook(std::nullptr_t) {}
    template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, Hook>>>
    Hook(F f) : call_(&call<F>) {
        static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= sizeof store_, "holds too much");
        new (store_) F(f);
    }

    explicit operator bool() const { return call_ != nullptr; }
    R operator()(Args... args) const { return call_(store_, std::forward<Args>(args)...); }

private:
    template <typename F>
    static R call(const void *store, Args... args) {
        return (*static_cast<const F *>(store))(std::forward<Args>(args)...);
    }

    R (*call_)(const void *, Args...) = nullptr;
    alignas(void *) unsigned char store_[2 * sizeof(void *)] = {};
};

template <typename>
class FunctionRef;

// A FunctionRef is a parameter: it points at a callable of the caller's.
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
public:
    template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, FunctionRef>>>
    FunctionRef(F &&f)
        : call_(&call<std::remove_reference_t<F>>), target_(const_cast<void *>(static_cast<const void *>(&f))) {}

    R operator()(Args... args) const { return call_(target_, std::forward<Args>(args)...); }

private:
    template <typename F>
    static R call(void *target, Args... args) {
        return (*static_cast<F *>(target))(std::forward<Args>(args)...);
    }

    R (*call_)(void *, Args...);
    void *target_;
};

// A Task is a method to run later on its object.
struct Task {
    void (*run)(void *) = nullptr;
    void *self = nullptr;

    void operator()() const { run(self); }
};

// task<&Boot::poll>(this)
template <auto Method, typename T>
Task task(T *self) {
    return {[](void *object) { (static_cast<T *>(object)->*Method)(); }, self};
}

}  // namespace fleet
