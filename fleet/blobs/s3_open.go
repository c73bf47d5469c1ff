package blobs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// s3Place is the location that a blob URL points to.
type s3Place struct {
	bucket   string
	prefix   string
	endpoint *url.URL // scheme and host
	region   string   // if "", ask the server
}

const s3Form = "use s3://bucket/prefix?endpoint=https://host&region=name"

// parseS3 parses a blob URL. Its errors do not repeat the URL, which may contain a password.
func parseS3(address string) (p s3Place, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return p, errors.New("the blob URL cannot be read; " + s3Form)
	}
	if u.User != nil {
		return p, errors.New("the blob URL holds credentials; remove them from it, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	}
	p.bucket, p.prefix = u.Host, strings.Trim(u.Path, "/")
	if err := s3utils.CheckValidBucketNameStrict(p.bucket); err != nil {
		return p, errors.New("the blob URL names no bucket of S3 (3 to 63 lower-case letters, digits, dots and hyphens); " + s3Form)
	}
	if p.prefix != "" && !fs.ValidPath(p.prefix) {
		return p, errors.New("the prefix of the blob URL has an empty or a relative part; " + s3Form)
	}
	if p.prefix != "" {
		p.prefix += "/"
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil || u.Fragment != "" || u.Opaque != "" {
		return p, errors.New("the blob URL cannot be read; " + s3Form)
	}
	for name, values := range query {
		if name != "endpoint" && name != "region" {
			return p, errors.New("the blob URL has an unknown parameter; use endpoint or region, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for the credentials")
		}
		if len(values) > 1 {
			return p, fmt.Errorf("the blob URL has the parameter %s twice; give it once", name)
		}
	}
	p.region = query.Get("region")
	p.endpoint, err = parseEndpoint(cmp.Or(query.Get("endpoint"), "https://s3.amazonaws.com"))
	return p, err
}

func parseEndpoint(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("the endpoint of the blob URL cannot be read; use https://host, https://host:port or http://host:port")
	}
	return u, nil
}

// openS3 opens the store in an existing bucket. It checks at once that it can read, write and
// list the bucket.
func openS3(ctx context.Context, address string, timeout time.Duration) (*Store, error) {
	p, err := parseS3(address)
	if err != nil {
		return nil, err
	}
	creds := credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{},
		&credentials.FileAWSCredentials{}})
	b := &s3Bucket{conns: Transport(timeout), bucket: p.bucket, prefix: p.prefix, host: p.endpoint.Host,
		timeout: timeout}
	b.core, err = minio.NewCore(p.endpoint.Host, &minio.Options{Creds: creds, Secure: p.endpoint.Scheme == "https",
		Transport: b.conns, Region: p.region, MaxRetries: s3Attempts})
	if err != nil {
		return nil, fmt.Errorf("the endpoint of the blob URL: %w; use https://host or https://host:port", err)
	}
	key, err := creds.GetWithContext(b.core.CredContext())
	if err != nil || key.AccessKeyID == "" || key.SecretAccessKey == "" {
		return nil, errors.New("S3 needs credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them to ~/.aws/credentials")
	}
	if err := b.begin(ctx); err != nil {
		b.close()
		return nil, err
	}
	return newStore(b), nil
}

func (b *s3Bucket) begin(ctx context.Context) error {
	mark, err := b.marked(ctx)
	if errors.Is(err, fs.ErrNotExist) && !isS3(err, minio.NoSuchBucket) {
		if err := b.put(ctx, marker, []byte(rand.Text())); err != nil {
			return b.explain("written", err)
		}
		mark, err = b.marked(ctx)
	}
	if err != nil {
		return b.explain("read", err)
	}
	b.mark = mark
	probe := incoming + rand.Text()
	if err := b.put(ctx, probe, bytes.Repeat([]byte("x"), 16)); err != nil {
		return b.explain("written", err)
	}
	if err := b.remove(ctx, probe); err != nil {
		return b.explain("written", err)
	}
	if err := b.sweep(ctx, time.Now().Add(-incomingTTL)); err != nil {
		return b.explain("listed", err)
	}
	return nil
}

// explain adds advice to the error about an unusable bucket.
func (b *s3Bucket) explain(what string, err error) error {
	advice := "check the endpoint and the region in --blob-url, and that the server runs"
	switch {
	case isS3(err, minio.NoSuchBucket):
		advice = "create the bucket, or correct --blob-url"
	case isS3(err, "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"):
		advice = "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
	case isS3(err, minio.AccessDenied):
		advice = "allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket to the credentials"
	case isS3(err, "RequestTimeTooSkewed"):
		advice = "set the clock of this machine"
	case isS3(err, "AuthorizationHeaderMalformed", "PermanentRedirect"):
		advice = "correct the region in --blob-url"
	}
	return fmt.Errorf("the S3 bucket %s at %s cannot be %s: %w; %s", b.bucket, b.host, what, err, advice)
}
