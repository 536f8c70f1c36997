# nvshare_proto(TARGET names...): a static library of what protoc makes of proto/<name>.proto in the caller's folder, messages and gRPC
# services. Built once, without our warnings; includes of it are system includes. Needs Protobuf and gRPC.
function(nvshare_proto target)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/proto)
  set(sources "")
  foreach(name ${ARGN})
    add_custom_command(
      OUTPUT ${generated}/${name}.pb.cc ${generated}/${name}.pb.h ${generated}/${name}.grpc.pb.cc ${generated}/${name}.grpc.pb.h
      COMMAND ${CMAKE_COMMAND} -E make_directory ${generated}
      COMMAND ${Protobuf_PROTOC_EXECUTABLE} -I ${CMAKE_CURRENT_SOURCE_DIR}/proto --cpp_out=${generated} --grpc_out=${generated}
              --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin> ${name}.proto
      DEPENDS proto/${name}.proto VERBATIM)
    list(APPEND sources ${generated}/${name}.pb.cc ${generated}/${name}.grpc.pb.cc)
  endforeach()
  add_library(${target} STATIC ${sources})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON)  # gRPC's headers are what takes the time
  target_include_directories(${target} SYSTEM PUBLIC ${generated})
  target_link_libraries(${target} PUBLIC gRPC::grpc++ protobuf::libprotobuf)
endfunction()
