# One library per folder of src/. A folder's library links only what its DEPS name, so that an arrow against the order of
# src/CMakeLists.txt is a link error.
#
#   ckpt_library(plan SOURCES a.cc b.cc DEPS checkpoint PRIVATE_LIBS Foo::foo)      -> target ckpt_plan
#   ckpt_test(plan SOURCES a_test.cc DEPS plan)                                     -> target ckpt_plan_test, run by ctest

add_library(ckpt_options INTERFACE)
target_compile_options(ckpt_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers>)
if(CKPT_WERROR)
  target_compile_options(ckpt_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(CKPT_SANITIZE STREQUAL "address")
  target_compile_options(ckpt_options INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(ckpt_options INTERFACE -fsanitize=address,undefined)
elseif(CKPT_SANITIZE STREQUAL "thread")
  target_compile_options(ckpt_options INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(ckpt_options INTERFACE -fsanitize=thread)
endif()

if(CKPT_BUILD_FUZZ)
  target_compile_options(ckpt_options INTERFACE -fsanitize=fuzzer-no-link)  # coverage, without a main()
endif()

function(ckpt_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_LIBS" ${ARGN})
  set(target ckpt_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  list(TRANSFORM ARG_DEPS PREPEND ckpt_)
  target_link_libraries(${target} PUBLIC ckpt_options ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_LIBS})
endfunction()

function(ckpt_test name)
  if(NOT CKPT_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;PRIVATE_LIBS" ${ARGN})
  set(target ckpt_${name}_test)
  add_executable(${target} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND ckpt_)
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} ${ARG_PRIVATE_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  if(CKPT_SANITIZE STREQUAL "thread")
    target_sources(${target} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/tsan_suppressions.cc)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)  # sanitizers on a slow machine; a hang is no less a hang
  endif()
  add_test(NAME ${name} COMMAND ${target})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS unit)
  if(CKPT_SANITIZE STREQUAL "thread")
    # UCX hooks madvise(2) to hear of unmapped memory. A thread that ends calls it for its stack when the sanitizer has
    # forgotten the thread already, and crashes on the lock that the hook takes. Set it, too, to run a test by hand.
    set_tests_properties(${name} PROPERTIES ENVIRONMENT UCX_MEM_EVENTS=n)
  endif()
endfunction()
