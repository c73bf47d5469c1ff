package rollout_test

import (
	"testing"

	"go.uber.org/goleak"

	"fleetd/fleet/postgres/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, pgtest.LeakOption()) }
