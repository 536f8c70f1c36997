# What packages hold: `cmake --install` and CPack (tools/make-packages.sh). One list of files for all kinds: .deb of this distribution's own
# libraries from the preset `release`, .deb and .rpm for other distributions from the preset `dist`, whose programs need libc alone. The
# relocatable tarball is tools/make-dist.sh's. Nothing here is for sanitizer builds.
if(NVSHARE_SANITIZER OR NOT NVSHARE_BUILD_DEMO)
  return()
endif()

set(library_folder lib/nvshare)  # below the prefix; nvsharectl looks there
install(TARGETS nvshare-scheduler nvsharectl nvshare-demo-job RUNTIME DESTINATION bin COMPONENT nvshare)
install(PROGRAMS deploy/packaging/nvshare DESTINATION bin COMPONENT nvshare)
install(TARGETS nvshare LIBRARY DESTINATION ${library_folder} COMPONENT nvshare)
install(FILES ${CMAKE_BINARY_DIR}/simgpu/libcuda.so.1 ${CMAKE_BINARY_DIR}/simgpu/libnvidia-ml.so.1
  DESTINATION ${library_folder}/simgpu COMPONENT nvshare)
install(FILES deploy/systemd/nvshare-scheduler.service DESTINATION lib/systemd/system COMPONENT nvshare)
install(FILES deploy/systemd/scheduler.toml DESTINATION /etc/nvshare COMPONENT nvshare)
file(STRINGS deploy/packaging/documents documents REGEX "^[^#]")  # tools/make-dist.sh reads the same list
foreach(document ${documents})
  get_filename_component(folder ${document} DIRECTORY)
  if(IS_DIRECTORY ${CMAKE_SOURCE_DIR}/${document})
    install(DIRECTORY ${document} DESTINATION share/doc/nvshare/${folder} COMPONENT nvshare)
  else()
    install(FILES ${document} DESTINATION share/doc/nvshare/${folder} COMPONENT nvshare)
  endif()
endforeach()
install(FILES deploy/jupyter/nvshare.py DESTINATION share/nvshare/jupyter COMPONENT nvshare)
install(FILES LICENSE DESTINATION share/doc/nvshare RENAME copyright COMPONENT nvshare)
# Man pages and completions say what the programs say.
function(install_pages component)
  set(programs "")
  foreach(name ${ARGN})
    set(program ${CMAKE_BINARY_DIR}/bin/${name})
    if(CMAKE_CROSSCOMPILING)
      list(JOIN CMAKE_CROSSCOMPILING_EMULATOR " " emulator)
      file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/emulated/${name} CONTENT "#!/bin/sh\nexec ${emulator} ${program} \"$@\"\n" @ONLY)
      set(program ${CMAKE_BINARY_DIR}/emulated/${name})
      file(CHMOD ${program} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
    endif()
    list(APPEND programs ${program})
  endforeach()
  list(JOIN programs " " programs)
  install(CODE "execute_process(COMMAND ${CMAKE_SOURCE_DIR}/tools/command-pages.py \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX} ${programs}
    COMMAND_ERROR_IS_FATAL ANY)" COMPONENT ${component})
endfunction()
install_pages(nvshare nvsharectl nvshare-scheduler nvshare-demo-job)

set(CPACK_COMPONENTS_ALL nvshare)
if(TARGET nvshare-device-plugin AND NOT NVSHARE_PORTABLE)  # with the gRPC of this distribution
  install(TARGETS nvshare-device-plugin nvshare-dra-driver RUNTIME DESTINATION bin COMPONENT nvshare-kubernetes)
  install_pages(nvshare-kubernetes nvshare-device-plugin nvshare-dra-driver)
  install(FILES deploy/nvshare.yaml docs/kubernetes.md docs/kubernetes-dra.md DESTINATION share/doc/nvshare-kubernetes COMPONENT nvshare-kubernetes)
  install(DIRECTORY deploy/examples deploy/helm DESTINATION share/doc/nvshare-kubernetes COMPONENT nvshare-kubernetes PATTERN files EXCLUDE)
  install(DIRECTORY deploy/monitoring/ DESTINATION share/doc/nvshare-kubernetes/helm/nvshare/files COMPONENT nvshare-kubernetes)  # links there
  install(FILES LICENSE DESTINATION share/doc/nvshare-kubernetes RENAME copyright COMPONENT nvshare-kubernetes)
  list(APPEND CPACK_COMPONENTS_ALL nvshare-kubernetes)
endif()

if(TARGET nvshare_spank AND NOT NVSHARE_PORTABLE)  # for this distribution's Slurm
  install(TARGETS nvshare_spank LIBRARY DESTINATION ${library_folder} COMPONENT nvshare-slurm)
  install(TARGETS nvshare-slurm-step RUNTIME DESTINATION ${library_folder} COMPONENT nvshare-slurm)
  install(FILES deploy/slurm/nvshare.conf deploy/slurm/plugstack.conf docs/slurm.md DESTINATION share/doc/nvshare-slurm COMPONENT nvshare-slurm)
  install(FILES LICENSE DESTINATION share/doc/nvshare-slurm RENAME copyright COMPONENT nvshare-slurm)
  list(APPEND CPACK_COMPONENTS_ALL nvshare-slurm)
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME nvshare)
set(CPACK_PACKAGE_CONTACT "the nvshare project")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
if(CMAKE_CROSSCOMPILING)  # of the preset arm64, whose programs need libc alone, of the release that tools/make-dist.sh allows; its stand-in GPU more
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
  file(STRINGS tools/make-dist.sh glibc REGEX "^GLIBC_MAX=[0-9.]+")
  string(REGEX REPLACE "^GLIBC_MAX=([0-9.]+).*" "\\1" glibc "${glibc}")
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= ${glibc}), libgcc-s1, libstdc++6 (>= 12)")
else()
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR}/simgpu)
endif()
set(CPACK_DEBIAN_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_NVSHARE_PACKAGE_NAME nvshare)
if(NVSHARE_PORTABLE AND NOT CMAKE_CROSSCOMPILING)  # the same package, of another name as a file: both may lie in one folder
  execute_process(COMMAND dpkg --print-architecture OUTPUT_VARIABLE architecture OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(CPACK_DEBIAN_NVSHARE_FILE_NAME nvshare-portable_${PROJECT_VERSION}_${architecture}.deb)
endif()
set(CPACK_COMPONENT_NVSHARE_DESCRIPTION "Shares NVIDIA GPUs between unmodified CUDA programs
 Programs that fit together run together; those that do not take turns, with
 their GPU memory swapped to host memory. Library, scheduler and nvsharectl.")
set(CPACK_DEBIAN_NVSHARE_PACKAGE_CONTROL_EXTRA
  ${CMAKE_SOURCE_DIR}/deploy/packaging/postinst ${CMAKE_SOURCE_DIR}/deploy/packaging/prerm ${CMAKE_SOURCE_DIR}/deploy/packaging/postrm
  ${CMAKE_SOURCE_DIR}/deploy/packaging/conffiles)
set(CPACK_DEBIAN_NVSHARE-KUBERNETES_PACKAGE_NAME nvshare-kubernetes)
set(CPACK_COMPONENT_NVSHARE-KUBERNETES_DESCRIPTION "Shares NVIDIA GPUs between Kubernetes pods
 The device plugin of nvshare, its Helm chart and examples.")
set(CPACK_DEBIAN_NVSHARE-KUBERNETES_PACKAGE_DEPENDS "nvshare (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_NVSHARE-SLURM_PACKAGE_NAME nvshare-slurm)
set(CPACK_COMPONENT_NVSHARE-SLURM_DESCRIPTION "Shares NVIDIA GPUs between jobs of Slurm
 The SPANK plugin of nvshare: the option --nvshare of srun, sbatch and salloc,
 and limits of jobs. For the Slurm of this distribution.")
set(CPACK_DEBIAN_NVSHARE-SLURM_PACKAGE_RECOMMENDS "nvshare (= ${PROJECT_VERSION}), slurmd | slurm-client")

set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_COMPRESSION_TYPE gzip)
set(CPACK_RPM_PACKAGE_LICENSE Apache-2.0)
set(CPACK_RPM_PACKAGE_GROUP System)
set(CPACK_RPM_NVSHARE_PACKAGE_NAME nvshare)
set(CPACK_RPM_NVSHARE_PACKAGE_SUMMARY "Shares NVIDIA GPUs between unmodified CUDA programs")
set(CPACK_RPM_NVSHARE-KUBERNETES_PACKAGE_NAME nvshare-kubernetes)
set(CPACK_RPM_NVSHARE-KUBERNETES_PACKAGE_SUMMARY "Shares NVIDIA GPUs between Kubernetes pods")
set(CPACK_RPM_NVSHARE-KUBERNETES_PACKAGE_REQUIRES "nvshare = ${PROJECT_VERSION}")
set(CPACK_RPM_NVSHARE-SLURM_PACKAGE_NAME nvshare-slurm)
set(CPACK_RPM_NVSHARE-SLURM_PACKAGE_SUMMARY "Shares NVIDIA GPUs between jobs of Slurm")
set(CPACK_RPM_NVSHARE_USER_FILELIST "%config(noreplace) /etc/nvshare/scheduler.toml")
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION /etc /usr/lib/systemd /usr/lib/systemd/system /usr/share/bash-completion
  /usr/share/bash-completion/completions /usr/share/fish /usr/share/fish/vendor_completions.d /usr/share/man /usr/share/man/man1 /usr/share/man/man8
  /usr/share/zsh /usr/share/zsh/vendor-completions)
set(CPACK_RPM_NVSHARE_POST_INSTALL_SCRIPT_FILE ${CMAKE_SOURCE_DIR}/deploy/packaging/rpm/post)
set(CPACK_RPM_NVSHARE_PRE_UNINSTALL_SCRIPT_FILE ${CMAKE_SOURCE_DIR}/deploy/packaging/rpm/preun)
set(CPACK_RPM_NVSHARE_POST_UNINSTALL_SCRIPT_FILE ${CMAKE_SOURCE_DIR}/deploy/packaging/rpm/postun)
# The stand-in GPU's libraries are the demo's alone: nobody is to be told that they are here, nor to need a driver for them.
set(CPACK_RPM_SPEC_MORE_DEFINE "%global __provides_exclude_from ^/usr/lib/nvshare/.*$
%global __requires_exclude ^lib(cuda|nvidia-ml)[.]so[.]1.*$
%global _build_id_links none
%global __brp_mangle_shebangs %{nil}")
include(CPack)
