# Parsing the standard library and doctest takes longer than compiling what
# includes them: each target does it once. The cross compilers do not, so that a
# missing include is found.
set(headers <algorithm> <array> <atomic> <cstdint> <cstring> <functional> <memory> <mutex> <string> <string_view> <vector>)
foreach(target fleet_core fleet_tools vdevice_ports vdevice_device vdevice_next)
    if(TARGET ${target})
        target_precompile_headers(${target} PRIVATE ${headers})
    endif()
endforeach()

foreach(target core_tests tools_tests esp_tests_s3_idf55 esp_tests_c3_idf60)
    if(TARGET ${target})
        target_precompile_headers(${target} PRIVATE ${headers} <thread> <doctest/doctest.h>)
    endif()
endforeach()
