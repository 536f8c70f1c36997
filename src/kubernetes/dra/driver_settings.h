// The DRA driver's settings: the rows of the device plugin's table that mean something here, and two of its own.
#pragma once

#include <vector>

#include "base/result.h"
#include "kubernetes/settings.h"

namespace nvshare::kubernetes::dra {

const std::vector<SettingSpec>& driver_setting_specs();

// Errors name the setting and what is accepted. A node's name is needed, and so is an API server.
Result<Settings> load_driver_settings(const settings::Lookup& environment, const settings::Texts& command_line);

// Of these settings.
std::string registration_socket_of(const Settings& settings);
std::string service_socket_of(const Settings& settings);

}  // namespace nvshare::kubernetes::dra
