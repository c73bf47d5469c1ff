# The port on the host, once as an ESP32-S3 on IDF 5.5 and once as an ESP32-C3 on
# IDF 6.0: between them, each branch of the preprocessor is run.
find_library(CRYPTO_LIBRARY crypto REQUIRED)

file(GLOB fake_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/fakes/*.cpp)
file(GLOB test_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/tests/*.cpp)

function(esp_tests name idf target board)
    add_executable(${name} ${fleet_esp_sources} ${firmware}/main/app.cpp ${firmware}/boards/${board}/board.cpp
                   ${fake_sources} ${test_sources})
    # The port sets a fake clock, not that of the machine.
    target_compile_definitions(${name} PRIVATE FLEET_STUB_IDF=${idf} FLEET_STUB_TARGET_${target} ${ARGN}
        settimeofday=fake_settimeofday gettimeofday=fake_gettimeofday)
    target_include_directories(${name} PRIVATE ${stubs} ${firmware}/main ${firmware}/components/fleet_esp/include
        ${firmware}/components/fleet_esp/src ${CMAKE_CURRENT_LIST_DIR}/fakes)
    target_compile_options(${name} PRIVATE -Wall -Wextra -Werror -Wno-deprecated-declarations)
    target_link_libraries(${name} PRIVATE doctest_main fleet_camera fleet_portal fleet_tools fleet_core fleet_font ${CRYPTO_LIBRARY})
    add_test(NAME ${name} COMMAND ${name} --no-skip)
endfunction()

esp_tests(esp_tests_s3_idf55 55 ESP32S3 esp32s3-lcd)
esp_tests(esp_tests_c3_idf60 60 ESP32C3 esp32c3-relay FLEET_STUB_SIGNED)
