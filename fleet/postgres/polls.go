package postgres

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// pollChunk bounds the polls of one transaction.
const pollChunk = 2000

// SavePolls creates or updates the polled devices. Of several polls of one device the newest is
// stored. The admission is stored as given: enrolment ensures that no poll is in transit while an
// operator decides.
func (s *Store) SavePolls(ctx context.Context, polls []enrolment.PollRecord) error {
	polls = newestPolls(polls)
	for chunk := range slices.Chunk(polls, pollChunk) {
		b := pollBatch(chunk)
		if err := s.db.SendBatch(ctx, b).Close(); err != nil {
			return fmt.Errorf("save %d polls: %w", len(chunk), domainError(err))
		}
	}
	return s.adoptOrphans(ctx, polls)
}

// newestPolls returns the newest poll of each device, by id: statements that lock devices do so
// in this order.
func newestPolls(polls []enrolment.PollRecord) []enrolment.PollRecord {
	sorted := slices.Clone(polls)
	slices.SortStableFunc(sorted, func(a, b enrolment.PollRecord) int {
		if c := strings.Compare(string(a.Poll.Device), string(b.Poll.Device)); c != 0 {
			return c
		}
		return b.Poll.At.Compare(a.Poll.At)
	})
	return slices.CompactFunc(sorted, func(a, b enrolment.PollRecord) bool { return a.Poll.Device == b.Poll.Device })
}

// Empty fields of a poll change nothing: a body that could not be parsed does not delete what is
// stored. A new version without a build clears the build. A poll of kind PollStranger changes
// only the address and the admission.
const upsertDevices = `
	INSERT INTO devices (id, board, board_key, board_type, chip, version, version_key, elf_sha256, slot, language,
		remote_addr,
		client_id, new_client_id, serial, claim_code, challenge, enrolment, enrolled_at, presence_since, last_seen,
			last_poll, created_at,
		ota_slot_size, partition_labels, chip_rev, free_heap, flash_bytes, transport_given, device_key)
	SELECT id, board, board_key, board_type, chip, version, version_key::bigint[], elf_sha256, slot, language, remote_addr,
		client_id, new_client_id, serial, claim_code, challenge, enrolment, CASE WHEN enrolment = 'enrolled' THEN at END,
			at, CASE WHEN heard THEN at END, CASE WHEN started THEN at END, at,
		ota_slot_size, string_to_array(partition_labels, E'\x01'), chip_rev, free_heap, flash_bytes,
		transport_given, device_key
	FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
		$9::text[], $10::text[],
		$11::text[], $12::text[], $13::text[], $14::text[], $15::int[], $16::text[], $17::text[], $18::text[],
		$19::bigint[], $20::text[], $21::int[], $22::bigint[], $23::bigint[], $24::text[], $25::bool[], $26::text[],
		$27::bool[])
		AS u (id, at, board, board_key, board_type, chip, version, version_key, elf_sha256, slot,
		language, remote_addr, client_id, new_client_id, serial, claim_code, challenge, enrolment,
		ota_slot_size, partition_labels, chip_rev, free_heap, flash_bytes, transport_given, started, device_key, heard)
	ON CONFLICT (id) DO UPDATE SET
		board = CASE WHEN ` + pinnedBoard + ` THEN devices.board ELSE coalesce(nullif(excluded.board, ''), devices.board) END,
		board_key = CASE WHEN ` + pinnedBoard + ` THEN devices.board_key
			ELSE coalesce(nullif(excluded.board_key, ''), devices.board_key) END,
		board_type = CASE WHEN ` + pinnedBoard + ` AND devices.board_type <> '' THEN devices.board_type
			ELSE coalesce(nullif(excluded.board_type, ''), devices.board_type) END,
		chip = CASE WHEN ` + pinnedChip + ` THEN devices.chip ELSE coalesce(nullif(excluded.chip, ''), devices.chip) END,
		claimed_board = CASE WHEN ` + otherHardware + ` THEN excluded.board ELSE devices.claimed_board END,
		claimed_board_type = CASE WHEN ` + otherHardware + ` THEN excluded.board_type ELSE devices.claimed_board_type END,
		claimed_chip = CASE WHEN ` + otherHardware + ` THEN excluded.chip ELSE devices.claimed_chip END,
		claimed_at = CASE WHEN ` + otherHardware + ` THEN excluded.last_poll ELSE devices.claimed_at END,
		version = coalesce(nullif(excluded.version, ''), devices.version),
		version_key = CASE WHEN excluded.version = '' THEN devices.version_key ELSE excluded.version_key END,
		elf_sha256 = CASE WHEN excluded.elf_sha256 <> '' THEN excluded.elf_sha256
			WHEN excluded.version IN ('', devices.version) THEN devices.elf_sha256 ELSE '' END,
		slot = CASE WHEN excluded.slot <> '' THEN excluded.slot
			WHEN excluded.version IN ('', devices.version) THEN devices.slot ELSE '' END,
		language = coalesce(nullif(excluded.language, ''), devices.language),
		remote_addr = coalesce(nullif(excluded.remote_addr, ''), devices.remote_addr),
		device_key = excluded.device_key,
		client_id = excluded.client_id, new_client_id = excluded.new_client_id, serial = excluded.serial,
		claim_code = excluded.claim_code, challenge = excluded.challenge, enrolment = excluded.enrolment,
		enrolled_at = CASE WHEN excluded.enrolment = 'enrolled' THEN coalesce(devices.enrolled_at,
			excluded.enrolled_at) ELSE devices.enrolled_at END,
		last_seen = greatest(devices.last_seen, excluded.last_seen),
		last_poll = coalesce(excluded.last_poll, devices.last_poll),
		ota_slot_size = coalesce(excluded.ota_slot_size, devices.ota_slot_size),
		partition_labels = coalesce(excluded.partition_labels, devices.partition_labels),
		chip_rev = coalesce(excluded.chip_rev, devices.chip_rev),
		free_heap = coalesce(excluded.free_heap, devices.free_heap),
		flash_bytes = coalesce(excluded.flash_bytes, devices.flash_bytes),
		transport_given = coalesce(nullif(excluded.transport_given, ''), devices.transport_given)`

// Board and chip are pinned once a device was admitted with them, so a device cannot choose its
// rules or campaigns by them. A different claim is stored next to the pinned value.
const (
	pinnedBoard   = `(devices.enrolled_at IS NOT NULL AND devices.board <> '')`
	pinnedChip    = `(devices.enrolled_at IS NOT NULL AND devices.chip <> '')`
	otherHardware = `(excluded.last_poll IS NOT NULL AND (` +
		pinnedBoard + ` AND excluded.board NOT IN ('', devices.board) OR ` +
		pinnedChip + ` AND excluded.chip NOT IN ('', devices.chip)))`
)

const upsertFacts = `
	INSERT INTO device_facts (device_id, polled_at, body, broken, salvaged, serial_number, user_agent, body_mac)
	SELECT id, at, body::json, broken, string_to_array(salvaged, ','), serial_number, user_agent, body_mac
	FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::bool[], $5::text[], $6::text[], $7::text[], $8::text[],
		$9::bool[]) AS u (id, at, body, broken, salvaged, serial_number, user_agent, body_mac, started)
	WHERE started
	ON CONFLICT (device_id) DO UPDATE SET polled_at = excluded.polled_at, body = excluded.body,
		broken = excluded.broken, salvaged = excluded.salvaged,
		serial_number = excluded.serial_number, user_agent = excluded.user_agent, body_mac = excluded.body_mac`

const firmwareArgs = `unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[]) AS u (id, at, version, slot, elf, idf)`

// The current period is extended or ends; a device without one starts a new one.
const extendFirmware = `
	UPDATE device_firmware f
	SET current = same, last_seen = CASE WHEN same THEN greatest(f.last_seen, u.at) ELSE f.last_seen END,
		slot = CASE WHEN same AND f.slot = '' THEN u.slot ELSE f.slot END,
		elf_sha256 = CASE WHEN same AND f.elf_sha256 = '' THEN u.elf ELSE f.elf_sha256 END,
		idf_version = CASE WHEN same AND f.idf_version = '' THEN u.idf ELSE f.idf_version END
	FROM (SELECT u.*, f.id AS firmware, f.version = u.version
			AND (u.slot = '' OR f.slot IN ('', u.slot)) AND (u.elf = '' OR f.elf_sha256 IN ('', u.elf)) AS same
		FROM ` + firmwareArgs + ` JOIN device_firmware f ON f.device_id = u.id AND f.current) u
	WHERE f.id = u.firmware AND u.version <> ''`

var startFirmware = `
	WITH begun AS (
	INSERT INTO device_firmware (device_id, version, slot, elf_sha256, idf_version, first_seen, last_seen, current)
	SELECT u.id, u.version, u.slot, u.elf, u.idf, u.at, u.at, true
	FROM ` + firmwareArgs + `
	WHERE u.version <> '' AND NOT EXISTS (SELECT FROM device_firmware f WHERE f.device_id = u.id AND f.current)
	RETURNING *)
	` + queueRows(firmwareLeaf, "begun")

// A boot poll proves a restart of a device whose previous poll was answered with credentials: a
// device that waits for admission polls repeatedly. The statement reads devices as they were
// before the poll. If a report arrived since, it already contains the restart.
const addRestarts = `
	INSERT INTO report_changes (device_id, at, code, params)
	SELECT u.id, u.at, 'restarted', jsonb_build_object('proof', 'boot_poll', 'version', u.version)
	FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::bool[])
		AS u (id, at, version, enrolment, started)
	JOIN devices d ON d.id = u.id
	WHERE u.started AND u.enrolment = 'enrolled' AND d.enrolment = 'enrolled' AND d.enrolled_at <= d.last_poll
		AND u.at > d.last_poll AND NOT EXISTS (SELECT FROM report_changes r
			WHERE r.device_id = u.id AND r.code = 'restarted' AND r.at >= u.at)
	ON CONFLICT DO NOTHING`

// pollBatch returns the batch of one transaction: PostgreSQL commits a pgx batch as a whole.
func pollBatch(polls []enrolment.PollRecord) *pgx.Batch {
	text := func(of func(*enrolment.PollRecord) string) []string {
		return pollColumn(polls, func(r *enrolment.PollRecord) string { return cleanText(of(r)) })
	}
	id := text(func(r *enrolment.PollRecord) string { return string(r.Poll.Device) })
	at := pollColumn(polls, func(r *enrolment.PollRecord) time.Time { return r.Poll.At })
	version := text(func(r *enrolment.PollRecord) string { return r.Poll.Version })
	started := pollColumn(polls, func(r *enrolment.PollRecord) bool { return r.Poll.Kind == enrolment.PollStart })
	heard := pollColumn(polls, func(r *enrolment.PollRecord) bool { return r.Poll.Kind != enrolment.PollStranger })
	elf := text(func(r *enrolment.PollRecord) string { return r.Poll.ELFSHA256 })
	slot := text(func(r *enrolment.PollRecord) string { return r.Poll.Slot })
	firmware := []any{id, at, version, slot, elf, text(func(r *enrolment.PollRecord) string { return r.Poll.IDFVersion })}

	var b pgx.Batch
	b.Queue(addRestarts, id, at, version,
		text(func(r *enrolment.PollRecord) string { return string(r.Admission.Enrolment) }), started)
	b.Queue(upsertDevices, id, at,
		text(func(r *enrolment.PollRecord) string { return r.Poll.Board }),
		text(func(r *enrolment.PollRecord) string { return strings.ToLower(r.Poll.Board) }),
		text(func(r *enrolment.PollRecord) string { return r.Poll.BoardType }),
		text(func(r *enrolment.PollRecord) string { return r.Poll.Chip }),
		version,
		pollColumn(polls, func(r *enrolment.PollRecord) *string { return bigints(fleet.VersionKey(r.Poll.Version)) }),
		elf, slot,
		text(func(r *enrolment.PollRecord) string { return r.Poll.Language }),
		text(func(r *enrolment.PollRecord) string { return r.Poll.RemoteAddr }),
		text(func(r *enrolment.PollRecord) string { return r.Admission.ClientID }),
		text(func(r *enrolment.PollRecord) string { return r.Admission.NewClientID }),
		pollColumn(polls, func(r *enrolment.PollRecord) int32 { return r.Admission.Serial }),
		text(func(r *enrolment.PollRecord) string { return r.Admission.ClaimCode }),
		text(func(r *enrolment.PollRecord) string { return r.Admission.Challenge }),
		text(func(r *enrolment.PollRecord) string { return string(r.Admission.Enrolment) }),
		layoutColumn(polls, func(l *fleet.FlashLayout) int64 { return l.SlotSize }),
		layoutColumn(polls, func(l *fleet.FlashLayout) string { return cleanText(strings.Join(l.Labels, labelSeparator)) }),
		layoutColumn(polls, func(l *fleet.FlashLayout) int { return l.ChipRev }),
		layoutColumn(polls, func(l *fleet.FlashLayout) int64 { return l.FreeHeap }),
		layoutColumn(polls, func(l *fleet.FlashLayout) int64 { return l.FlashBytes }),
		text(func(r *enrolment.PollRecord) string { return string(r.Poll.Given) }), started,
		text(func(r *enrolment.PollRecord) string { return r.Admission.Key }), heard)
	b.Queue(upsertFacts, id, at,
		pollColumn(polls, func(r *enrolment.PollRecord) *string { return cleanJSON(r.Poll.Facts) }),
		pollColumn(polls, func(r *enrolment.PollRecord) bool { return r.Poll.Broken }),
		pollColumn(polls, func(r *enrolment.PollRecord) string { return joinFields(r.Poll.Salvaged) }),
		text(func(r *enrolment.PollRecord) string { return r.Poll.SerialNumber }),
		text(func(r *enrolment.PollRecord) string { return r.Poll.UserAgent }),
		text(func(r *enrolment.PollRecord) string { return r.Poll.BodyMAC }), started)
	b.Queue(extendFirmware, firmware...)
	b.Queue(startFirmware, firmware...)
	queueAcceptances(&b, polls)
	return &b
}

// joinFields encodes fields as text: unnest would flatten an array of arrays.
func joinFields(fields []fleet.PollField) string {
	parts := make([]string, len(fields))
	for i, f := range fields {
		parts[i] = string(f)
	}
	return strings.Join(parts, ",")
}

func pollColumn[T any](polls []enrolment.PollRecord, of func(*enrolment.PollRecord) T) []T {
	out := make([]T, len(polls))
	for i := range polls {
		out[i] = of(&polls[i])
	}
	return out
}

// labelSeparator joins partition labels for unnest, which would flatten an array of arrays.
// Labels cannot contain it, because text from devices has no control characters.
const labelSeparator = "\x01"

// layoutColumn returns null for polls without a layout. For one poll, all layout columns are null
// or none is.
func layoutColumn[T any](polls []enrolment.PollRecord, of func(*fleet.FlashLayout) T) []*T {
	return pollColumn(polls, func(r *enrolment.PollRecord) *T {
		if r.Poll.Layout == nil {
			return nil
		}
		v := of(r.Poll.Layout)
		return &v
	})
}

// bigints encodes a version key as an array literal: unnest would flatten an array of arrays.
func bigints(key []int64) *string {
	if key == nil {
		return nil
	}
	parts := make([]string, len(key))
	for i, n := range key {
		parts[i] = strconv.FormatInt(n, 10)
	}
	literal := "{" + strings.Join(parts, ",") + "}"
	return &literal
}
