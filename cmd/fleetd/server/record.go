package server

import (
	"context"
	"fmt"

	"fleetd/fleet/blobs"
	"fleetd/fleet/logstream"
	"fleetd/fleet/publish"
	"fleetd/fleet/record"
	"fleetd/fleet/redaction"
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
	if err := s.openPublisher(); err != nil {
		return err
	}
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

// openPublisher starts what copies the checkpoints of the record to places outside of the database.
func (s *Server) openPublisher() (err error) {
	s.Publisher, err = publish.New(publish.Options{Store: s.store, To: s.cfg.CheckpointTo, Witnesses: s.cfg.Witnesses,
		Every: s.cfg.CheckpointEvery, Open: openPlace, Guard: s.outbound, Log: s.log})
	if err != nil {
		return err
	}
	s.stages.run("checkpoints elsewhere", s.Publisher.Run)
	s.metrics.gauge("fleetd_checkpoint_places_failing", "Places and witnesses that did not take the latest checkpoint of the "+
		"record.", nil, func() (failing float64) {
		for _, state := range s.Publisher.States() {
			if !state.Since.IsZero() {
				failing++
			}
		}
		return failing
	})
	return nil
}

func openPlace(ctx context.Context, address string) (publish.Place, error) {
	return blobs.OpenNamed(ctx, address)
}

// openRedaction loads the rules that keep values out of the record, before the first call is made.
func (s *Server) openRedaction(ctx context.Context, sealer redaction.Sealer, secret []byte) (err error) {
	s.Redaction, err = redaction.New(redaction.Options{Store: s.store, Sealer: sealer, Secret: secret, Log: s.log})
	if err != nil {
		return err
	}
	if err := s.Redaction.Load(ctx); err != nil {
		return err
	}
	s.stages.add("redaction rules", s.Redaction.Run)
	return nil
}

// openLogStreams starts what sends the sealed record to other systems.
func (s *Server) openLogStreams(sealer logstream.Sealer) {
	s.LogStreams = logstream.New(logstream.Options{Store: s.store, Log: s.Record, Sealer: sealer, Guard: s.outbound,
		Logger: s.log})
	s.stages.run("log streams", s.LogStreams.Run)
	s.metrics.gauge("fleetd_log_streams_failing", "Log streams whose receiver refused or missed the latest entries.", nil,
		func() float64 { return float64(len(s.LogStreams.State().Failing)) })
	s.metrics.gauge("fleetd_log_stream_lag_entries", "Entries that the slowest log stream has not delivered.", nil,
		func() float64 { return float64(s.LogStreams.State().Lag) })
}
