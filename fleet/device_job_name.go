package fleet

import (
	"strconv"
	"strings"

	"github.com/google/uuid"
)

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
