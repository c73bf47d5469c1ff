package espimage

import (
	"fmt"
	"regexp"
)

var versionPattern = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9}){0,5}$`)

// LintVersion returns why a version must not be offered to a device in the answer to a boot
// poll, or nil if it may be. The stock firmware parses each part as a 32-bit number without
// catching errors: any other part throws, and the device restarts in a loop until the answer
// changes. Nine digits always fit.
func LintVersion(version string) error {
	if versionPattern.MatchString(version) {
		return nil
	}
	return fmt.Errorf("the version %.40q would make devices crash when offered at boot: it must be one to six numbers of at most nine digits with dots between, such as 2.4.3", version)
}
