package fleet

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// JobState is where a job of a device stands.
type JobState string

const (
	JobAccepted JobState = "accepted"
	JobProgress JobState = "progress"
	JobDone     JobState = "done"
	JobFailed   JobState = "failed"
)

// Final reports whether the state is an outcome.
func (s JobState) Final() bool { return s == JobDone || s == JobFailed }

// UpgradeJobName names the job of an attempt at a campaign's upgrade, as the
// device reports on it: at most 48 bytes, as much as the included firmware keeps.
func UpgradeJobName(deployment uuid.UUID, attempt int) string {
	return deployment.String() + "." + strconv.Itoa(attempt)
}

// ParseUpgradeJob reads what [UpgradeJobName] wrote; false for any other name.
func ParseUpgradeJob(job string) (deployment uuid.UUID, attempt int, ok bool) {
	id, number, _ := strings.Cut(job, ".")
	deployment, err := uuid.Parse(id)
	if err != nil {
		return uuid.UUID{}, 0, false
	}
	attempt, err = strconv.Atoi(number)
	if err != nil || attempt < 1 || UpgradeJobName(deployment, attempt) != job {
		return uuid.UUID{}, 0, false
	}
	return deployment, attempt, true
}

// A FirmwareOffer is the firmware section of an answer to a boot poll.
type FirmwareOffer struct {
	Version string
	URL     string // one-time link of the attempt
	Force   bool   // install although the version is not newer
	// For the included firmware; stock firmware does not look at them.
	SHA256    string // of the bytes, hex
	Size      int64  // bytes
	Job       string // as [UpgradeJobName] names it
	Manifest  string // signed statement about the image; "" without one
	Signature string // of the manifest, base64
}

var comparableVersion = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9}){0,5}$`)

// ComparableVersion reports whether a stock device survives comparing the
// version: it parses each part as a number, and throws on one that is not.
func ComparableVersion(version string) bool { return comparableVersion.MatchString(version) }
