package fleet

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// JobState is the state of a device's job.
type JobState string

const (
	JobAccepted JobState = "accepted"
	JobProgress JobState = "progress"
	JobDone     JobState = "done"
	JobFailed   JobState = "failed"
)

// Final reports whether the state is an outcome.
func (s JobState) Final() bool { return s == JobDone || s == JobFailed }

// UpgradeJobName returns the name of an upgrade attempt's job, which the device uses in its
// reports. It has at most 48 bytes, the limit of the included firmware.
func UpgradeJobName(deployment uuid.UUID, attempt int) string {
	return deployment.String() + "." + strconv.Itoa(attempt)
}

// ParseUpgradeJob parses a name from [UpgradeJobName]; it returns false for any other name.
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
	Force   bool   // install even if the version is not newer
	// For the included firmware; stock firmware ignores them.
	SHA256    string // of the bytes, hex
	Size      int64  // bytes
	Job       string // as [UpgradeJobName] names it
	Manifest  string // signed statement about the image; "" without one
	Signature string // of the manifest, base64
}

var comparableVersion = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9}){0,5}$`)

// ComparableVersion reports whether a stock device can compare the version without crashing:
// it parses each part as a number and throws on any other part.
func ComparableVersion(version string) bool { return comparableVersion.MatchString(version) }
