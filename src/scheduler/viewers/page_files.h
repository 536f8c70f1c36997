// The files of the page (page/), embedded when CMake configures.
#pragma once

namespace nvshare::scheduler {

extern const char kPageHtml[];
extern const char kPageCss[];
extern const char kPageFigures[];
extern const char kPageTables[];
extern const char kPagePast[];
extern const char kPageScript[];

}  // namespace nvshare::scheduler
