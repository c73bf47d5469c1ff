package postgres

import (
	"context"
	"encoding/json"
	"fmt"
)

// Setting reads the setting of that name into v, or returns [fleet.ErrNotFound].
func (s *Store) Setting(ctx context.Context, key string, v any) error {
	var raw []byte
	err := s.db.QueryRow(ctx, `SELECT value FROM settings WHERE key = $1`, key).Scan(&raw)
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		return fmt.Errorf("setting %s: %w", key, domainError(err))
	}
	return nil
}

// SetSetting stores v, which must marshal to JSON.
func (s *Store) SetSetting(ctx context.Context, key string, v any) error {
	raw, err := json.Marshal(v)
	if err == nil {
		_, err = s.db.Exec(ctx, `
			INSERT INTO settings (key, value) VALUES ($1, $2)
			ON CONFLICT (key) DO UPDATE SET value = excluded.value`, key, string(raw))
	}
	if err != nil {
		return fmt.Errorf("setting %s: %w", key, domainError(err))
	}
	return nil
}

// InitSetting stores v unless the setting exists, then reads the stored value into v, so that
// processes that start together use the same value.
func (s *Store) InitSetting(ctx context.Context, key string, v any) error {
	raw, err := json.Marshal(v)
	if err == nil {
		_, err = s.db.Exec(ctx, `INSERT INTO settings (key, value) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING`, key,
			string(raw))
	}
	if err != nil {
		return fmt.Errorf("setting %s: %w", key, domainError(err))
	}
	return s.Setting(ctx, key, v)
}
