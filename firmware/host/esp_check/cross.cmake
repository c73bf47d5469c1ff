# One object per source, chip and flavour of ESP-IDF. Neither of Debian's cross
# compilers brings a C++ library; the headers of the one for ARM are of the same
# GCC and of the same C library's kind.
find_program(RV32_CXX riscv64-unknown-elf-g++ REQUIRED)
find_program(XTENSA_CXX xtensa-lx106-elf-g++ REQUIRED)
file(GLOB CROSS_CXX_HEADERS /usr/include/newlib/c++/*)
if(NOT CROSS_CXX_HEADERS)
    message(FATAL_ERROR "no C++ headers in /usr/include/newlib: libstdc++-arm-none-eabi-dev is missing")
endif()
find_file(XTENSA_SPECS picolibc.specs PATHS /usr/lib/xtensa-lx106-elf NO_DEFAULT_PATH REQUIRED)

# What idf.py uses: C++23 with GNU's extensions, no exceptions, no RTTI, small.
set(cross_flags -std=gnu++2b -D_GNU_SOURCE -DESP_PLATFORM -Os -ffunction-sections -fdata-sections -fno-exceptions -fno-rtti
    -Wall -Wextra -Werror -Wshadow -I${stubs} -isystem ${CROSS_CXX_HEADERS} -isystem ${CROSS_CXX_HEADERS}/arm-none-eabi)
foreach(component fleet_ports fleet_core fleet_esp fleet_font fleet_tools fleet_camera fleet_portal)
    list(APPEND cross_flags -I${firmware}/components/${component}/include)
endforeach()
set(rv32 ${CMAKE_CXX_COMPILER_LAUNCHER} ${RV32_CXX} --specs=picolibc.specs -march=rv32imc -mabi=ilp32)
# The only packaged Xtensa compiler is for another chip: its objects are not of use, its warnings are.
set(xtensa ${CMAKE_CXX_COMPILER_LAUNCHER} ${XTENSA_CXX} --specs=${XTENSA_SPECS})

set(cross_results)
# cross(name, compiler, sources, flags...)
function(cross name compiler sources)
    set(results)
    foreach(source ${${sources}})
        file(RELATIVE_PATH short ${firmware} ${source})
        string(REPLACE "/" "_" short ${short})
        set(result ${CMAKE_CURRENT_BINARY_DIR}/${name}/${short}.o)
        add_custom_command(OUTPUT ${result}
                           COMMAND ${${compiler}} ${cross_flags} ${ARGN} -MD -MF ${result}.d -MT ${result} -c ${source} -o ${result}
                           DEPENDS ${source} DEPFILE ${result}.d COMMENT "${name}: ${short}" VERBATIM)
        list(APPEND results ${result})
    endforeach()
    file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${name})
    add_custom_target(cross_${name} ALL DEPENDS ${results})
endfunction()

file(GLOB board_sources CONFIGURE_DEPENDS ${firmware}/boards/*/board.cpp)
set(app_sources ${firmware}/main/app.cpp ${firmware}/main/app_main.cpp)
file(GLOB portal_sources CONFIGURE_DEPENDS ${firmware}/components/fleet_portal/src/*.cpp)
file(GLOB example_sources CONFIGURE_DEPENDS ${firmware}/examples/*/main/*.cpp)
set(all_sources ${example_sources} ${fleet_esp_sources} ${firmware}/components/fleet_font/src/font.cpp ${portal_sources} ${app_sources} ${board_sources})
set(optional_sources ${firmware}/components/fleet_esp/src/provisioning.cpp
    ${firmware}/components/fleet_esp/src/esp_crypto.cpp ${firmware}/main/app.cpp)
cross(esp32c6_idf60 rv32 all_sources -DFLEET_STUB_IDF=60 -DFLEET_STUB_TARGET_ESP32C6)
cross(esp32_idf60 xtensa all_sources -DFLEET_STUB_IDF=60 -DFLEET_STUB_TARGET_ESP32)
foreach(idf 55 60)
    cross(esp32c3_idf${idf} rv32 all_sources -DFLEET_STUB_IDF=${idf} -DFLEET_STUB_TARGET_ESP32C3)
    cross(esp32s3_idf${idf} xtensa all_sources -DFLEET_STUB_IDF=${idf} -DFLEET_STUB_TARGET_ESP32S3)
    # What Kconfig turns on: Bluetooth, signed releases, a private authority.
    cross(options_idf${idf} rv32 optional_sources -DFLEET_STUB_IDF=${idf} -DFLEET_STUB_TARGET_ESP32C3
          -DFLEET_STUB_PROV_BLE -DFLEET_STUB_SIGNED -DCONFIG_FLEET_PRIVATE_CA=1)
endforeach()
