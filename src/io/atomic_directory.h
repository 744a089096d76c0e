// A folder that appears whole under its name, or not at all.
#pragma once
#include <string>

namespace phalanx {

enum class ExistingFolder { kRefuse, kReplace };

// Fill `path()`, a hidden sibling of the target on the same disk, then commit(). Without commit everything is removed and the
// target is as it was.
class AtomicDirectory {
 public:
  // Creates missing parents. Throws IoError when the target exists and may not be replaced (an empty folder always may).
  explicit AtomicDirectory(std::string target, ExistingFolder existing = ExistingFolder::kRefuse);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const std::string& target() const { return target_; }
  const std::string& path() const { return temporary_; }
  std::string operator/(const std::string& name) const { return temporary_ + "/" + name; }

  // Publishes the folder by a rename, durably. A folder that is replaced is exchanged in the same rename, then removed.
  void commit();

 private:
  std::string target_;
  std::string temporary_;  // empty once committed
  ExistingFolder existing_;
};

}  // namespace phalanx
