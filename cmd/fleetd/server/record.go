package server

import (
	"context"
	"fmt"

	"fleetd/fleet/record"
)

// openRecord opens the log that seals the record of the fleet. This process appends to it, because it leads.
func (s *Server) openRecord(ctx context.Context, secret []byte) error {
	sequencer, err := record.OpenSequencer(ctx, record.SequencerOptions{Store: s.store, Secret: secret, Term: s.term,
		Log: s.log})
	if err != nil {
		return fmt.Errorf("open the sealed record: %w", err)
	}
	s.Record = record.NewService(record.ServiceOptions{Store: s.store, Sequencer: sequencer, Log: s.log})
	s.stages.run("sealed record", s.Record.Run)
	s.metrics.gauge("fleetd_record_entries", "Entries of the sealed record, as of the latest checkpoint.", nil,
		func() float64 { return float64(sequencer.Status().Latest.Size) })
	s.metrics.gauge("fleetd_record_sealing", "1 while the record is sealed each second, 0 while that fails.", nil,
		func() float64 {
			if sequencer.Status().Err != nil {
				return 0
			}
			return 1
		})
	return nil
}
