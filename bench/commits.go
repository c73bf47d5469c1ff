package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// singleRowCommits measures what a program gets that commits a row per call:
// the best of a few numbers of connections.
func singleRowCommits(ctx context.Context, url string, d time.Duration) (best reading, err error) {
	for _, connections := range []int{1, 16, 48} {
		r, err := commitsOver(ctx, url, connections, d)
		if err != nil {
			return best, err
		}
		if r.PerSecond > best.PerSecond {
			best = r
		}
	}
	return best, nil
}

func commitsOver(ctx context.Context, url string, connections int, d time.Duration) (reading, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return reading{}, err
	}
	config.MaxConns = int32(connections)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return reading{}, err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS bench_rows (id bigserial PRIMARY KEY, device text, tool text, arguments jsonb, at timestamptz)`); err != nil {
		return reading{}, err
	}
	return closedLoop(connections, d, func(int) error {
		_, err := pool.Exec(ctx, `INSERT INTO bench_rows (device, tool, arguments, at) VALUES ($1, $2, $3, now())`,
			"02beef000001", "self.audio_speaker.set_volume", `{"volume":50}`)
		return err
	}), nil
}
