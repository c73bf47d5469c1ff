package blobs

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"fleetd/fleet"
)

// s3Timeout is how long a connection to S3 may make no progress: while it is opened, while
// fleetd waits for the response, and between two parts of a body.
const s3Timeout = 15 * time.Second

// A failed request is sent again, up to s3Attempts times in all, if its body can be read
// again. s3Pauses is the maximum pause between attempts.
const (
	s3Attempts = 3
	s3Pauses   = 3 * time.Second
)

// s3Bucket stores objects in an S3 bucket, below a prefix. An upload first goes to a draft in
// incoming, because its name is its hash, which is known only after the last byte. The server
// then copies the draft.
type s3Bucket struct {
	core    *minio.Core
	conns   *http.Transport
	bucket  string
	prefix  string // "" or ending with a slash
	host    string // for messages
	timeout time.Duration
	mark    string // content of the marker when the bucket was opened
}

// short returns a context with the timeout of a request without a large body.
func (b *s3Bucket) short(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s3Attempts*b.timeout+s3Pauses)
}

// put sends the hash with the data, so that the server refuses damaged bytes.
func (b *s3Bucket) put(ctx context.Context, name string, data []byte) error {
	ctx, cancel := b.short(ctx)
	defer cancel()
	sum := sha256.Sum256(data)
	_, err := b.core.PutObject(ctx, b.bucket, b.prefix+name, bytes.NewReader(data), int64(len(data)), "",
		hex.EncodeToString(sum[:]), minio.PutObjectOptions{DisableContentSha256: true})
	return err
}

func (b *s3Bucket) receive(ctx context.Context, r io.Reader, size int64, name func() (string, error)) error {
	if size == 0 { // a signed stream cannot be empty
		to, err := name()
		if err != nil {
			return err
		}
		return b.put(ctx, to, nil)
	}
	draft := b.prefix + incoming + rand.Text()
	defer func() {
		ctx, cancel := b.short(context.WithoutCancel(ctx))
		defer cancel()
		_ = b.core.RemoveObject(ctx, b.bucket, draft, minio.RemoveObjectOptions{}) // if this fails, sweep deletes it
	}()
	body := &lent{r: r}
	_, err := b.core.PutObject(ctx, b.bucket, draft, body, size, "", "", minio.PutObjectOptions{})
	body.takeBack()
	if err != nil {
		return err
	}
	to, err := name()
	if err != nil {
		return err
	}
	ctx, cancel := b.short(ctx)
	defer cancel()
	_, err = b.core.CopyObject(ctx, b.bucket, draft, b.bucket, b.prefix+to, nil, minio.CopySrcOptions{},
		minio.PutObjectOptions{})
	return err
}

// lent is the body of a request. The transport may continue to read it after the response.
type lent struct {
	mu sync.Mutex
	r  io.Reader
}

func (l *lent) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.r == nil {
		return 0, io.ErrClosedPipe
	}
	return l.r.Read(p)
}

// takeBack waits for a read in progress and prevents further reads.
func (l *lent) takeBack() {
	l.mu.Lock()
	l.r = nil
	l.mu.Unlock()
}

func (b *s3Bucket) open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, stamp, error) {
	if length == 0 {
		now, _, err := b.stat(ctx, name)
		return io.NopCloser(strings.NewReader("")), now, err
	}
	r := &s3Reader{ctx: ctx, bucket: b, name: name, at: offset, end: -1}
	if length > 0 {
		r.end = offset + length
	}
	now, err := r.open()
	if isS3(err, minio.InvalidRange) {
		var size int64
		if now, size, err = b.stat(ctx, name); err == nil && offset < size {
			err = errRange
		}
		r.ReadCloser, r.end = io.NopCloser(strings.NewReader("")), r.at
	}
	return r, now, err
}

var errRange = errors.New("the server does not support ranges")

func (b *s3Bucket) stat(ctx context.Context, name string) (now stamp, size int64, err error) {
	ctx, cancel := b.short(ctx)
	defer cancel()
	info, err := b.core.StatObject(ctx, b.bucket, b.prefix+name, minio.StatObjectOptions{})
	return s3Stamp(info), info.Size, missing(err)
}

func s3Stamp(info minio.ObjectInfo) stamp {
	return stamp{modified: info.LastModified.UnixNano(), etag: info.ETag}
}

// s3Reader reads an object and opens it again if its connection breaks. A slow device may
// need longer for an image than a server keeps a connection open.
type s3Reader struct {
	ctx    context.Context
	bucket *s3Bucket
	name   string
	at     int64 // offset of the next byte
	end    int64 // where to stop; < 0 means the object's end
	from   int64 // where this connection started
	etag   string

	io.ReadCloser
}

func (r *s3Reader) open() (stamp, error) {
	var o minio.GetObjectOptions
	ranged := r.at > 0 || r.end >= 0
	if ranged {
		to := int64(0) // means the object's end in SetRange
		if r.end >= 0 {
			to = r.end - 1
		}
		if err := o.SetRange(r.at, to); err != nil {
			return stamp{}, err
		}
	}
	if r.etag != "" {
		if err := o.SetMatchETag(r.etag); err != nil {
			return stamp{}, err
		}
	}
	body, info, header, err := r.bucket.core.GetObject(r.ctx, r.bucket.bucket, r.bucket.prefix+r.name, o)
	if err != nil {
		return stamp{}, missing(err)
	}
	if ranged && !strings.HasPrefix(header.Get("Content-Range"), fmt.Sprintf("bytes %d-", r.at)) {
		body.Close()
		return stamp{}, errRange
	}
	if r.etag != "" && r.etag != info.ETag { // some servers ignore If-Match
		body.Close()
		return stamp{}, errors.New("the object was replaced while it was read")
	}
	r.ReadCloser, r.from, r.etag = body, r.at, info.ETag
	return s3Stamp(info), nil
}

func (r *s3Reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.at += int64(n)
	if err == nil || err == io.EOF || r.ctx.Err() != nil || r.at == r.from || r.at == r.end {
		return n, err
	}
	r.ReadCloser.Close()
	if _, again := r.open(); again != nil {
		r.ReadCloser = io.NopCloser(strings.NewReader(""))
		return n, errors.Join(err, again)
	}
	return n, nil
}

func (b *s3Bucket) remove(ctx context.Context, name string) error {
	ctx, cancel := b.short(ctx)
	defer cancel()
	return missing(b.core.RemoveObject(ctx, b.bucket, b.prefix+name, minio.RemoveObjectOptions{}))
}

func (b *s3Bucket) list(ctx context.Context, dir, after string, yield func(object) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the listing
	o := minio.ListObjectsOptions{Prefix: b.prefix + dir, Recursive: true}
	if after != "" {
		o.StartAfter = b.prefix + after
	}
	for found := range b.core.Client.ListObjects(ctx, b.bucket, o) {
		if found.Err != nil {
			return found.Err
		}
		name, below := strings.CutPrefix(found.Key, b.prefix)
		if !below || !strings.HasPrefix(name, dir) || name <= after { // some servers ignore where to start
			continue
		}
		if err := yield(object{name: name, size: found.Size, modified: found.LastModified}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// removeOld asks for the age directly before the deletion. S3 has no deletion on a condition that all
// servers know; that this process does not store the object at the same time is up to the caller, and
// other processes do not store any: only the holder of the database's lease receives uploads.
func (b *s3Bucket) removeOld(ctx context.Context, name string, before time.Time) (bool, error) {
	now, _, err := b.stat(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, b.there(ctx)
	}
	if err != nil || !time.Unix(0, now.modified).Before(before) {
		return false, err
	}
	err = b.remove(ctx, name)
	return err == nil, err
}

func (b *s3Bucket) sweep(ctx context.Context, before time.Time) error {
	ctx, cancel := b.short(ctx)
	defer cancel() // also ends the listing
	for draft := range b.core.Client.ListObjects(ctx, b.bucket,
		minio.ListObjectsOptions{Prefix: b.prefix + incoming, Recursive: true}) {
		if draft.Err != nil {
			return draft.Err
		}
		if draft.LastModified.Before(before) && strings.HasPrefix(draft.Key, b.prefix+incoming) {
			if err := b.core.RemoveObject(ctx, b.bucket, draft.Key, minio.RemoveObjectOptions{}); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// marked returns the content of the bucket's marker.
func (b *s3Bucket) marked(ctx context.Context) (string, error) {
	ctx, cancel := b.short(ctx)
	defer cancel()
	r, _, err := b.open(ctx, marker, 0, -1)
	if err != nil {
		return "", err
	}
	defer r.Close()
	mark, err := io.ReadAll(io.LimitReader(r, 100))
	return string(mark), err
}

func (b *s3Bucket) there(ctx context.Context) error {
	mark, err := b.marked(ctx)
	if err == nil && mark != b.mark || errors.Is(err, fs.ErrNotExist) {
		return fleet.Refuse(fleet.ErrUnavailable, "blob_store.other_bucket")
	}
	return err
}

func (b *s3Bucket) close() error {
	b.conns.CloseIdleConnections()
	return nil
}

// missing adds [fs.ErrNotExist] to an error that says that an object or its bucket is
// missing.
func missing(err error) error {
	if isS3(err, minio.NoSuchKey, minio.NoSuchBucket) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

func isS3(err error, codes ...string) bool {
	e, ok := errors.AsType[minio.ErrorResponse](err)
	if !ok {
		return false
	}
	for _, code := range codes {
		if e.Code == code {
			return true
		}
	}
	return false
}

// s3Cause returns the code of the server's refusal, or "".
func s3Cause(err error) string {
	e, _ := errors.AsType[minio.ErrorResponse](err)
	return fleet.CleanText(e.Code, 80)
}

// Transport opens connections to S3. They fail if they make no progress for the timeout.
func Transport(timeout time.Duration) *http.Transport {
	dialer := net.Dialer{Timeout: timeout}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return progressing{c, timeout}, nil
		},
		TLSHandshakeTimeout:   timeout,
		ResponseHeaderTimeout: timeout,
		IdleConnTimeout:       timeout / 2, // shorter than the timeout, after which a waiting read would fail
		MaxIdleConnsPerHost:   64,
		DisableCompression:    true, // blobs are transferred as stored
	}
}

// progressing is a connection whose reads and writes fail if nothing happens for the timeout.
// A write extends a read that waits for its response.
type progressing struct {
	net.Conn
	timeout time.Duration
}

func (c progressing) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c progressing) Write(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}
