package console_test

import (
	"log/slog"
	"testing"

	"fleetd/fleet/record"
)

// newRecord returns the sealed record over a store. It seals when asked to.
func newRecord(t testing.TB, store record.Store, log *slog.Logger) (*record.Service, *record.Sequencer) {
	t.Helper()
	sequencer, err := record.OpenSequencer(t.Context(), record.SequencerOptions{Store: store,
		Secret: []byte("the secret key of a test, 32 byte"), Term: 1, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return record.NewService(record.ServiceOptions{Store: store, Sequencer: sequencer, Log: log}), sequencer
}
