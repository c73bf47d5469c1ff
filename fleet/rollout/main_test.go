package rollout_test

import (
	"testing"

	"fleetd/fleet/postgres/pgtest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, pgtest.LeakOption()) }
