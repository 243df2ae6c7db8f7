package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"io"
)

// The launcher may give the ranks of a host a file of shared memory (memfd). It then records in the
// file which of the ranks' processes have ended, because a rank that dies before it has opened the
// file cannot record anything about itself. The records are words of 4 bytes, one for each rank.
// The ranks of the host are numbered from 0 on. A word is 0 until the process of its rank has
// ended, and then 1:
//
//	ShmEndedAt         ShmEndedAt + 4              ShmEndedAt + 4 × ShmEndedMax
//	┌──────────────────┬──────────────────┬─ … ─┬──┐
//	│ rank 0           │ rank 1           │     │  │
//	└──────────────────┴──────────────────┴─ … ─┴──┘
const (
	ShmEndedAt  = 4096 // offset of the first word in the file, in bytes
	ShmEndedMax = 4096 // maximum number of words
)

// PutShmEnded records in the file of shared memory that the process of a rank has ended. The file
// may be of any size. rank is the rank's number among the ranks of the host, from 0 on. If it is
// ShmEndedMax or more, or negative, PutShmEnded does nothing. The error is that of WriteAt.
func PutShmEnded(file io.WriterAt, rank int) error {
	if rank < 0 || rank >= ShmEndedMax {
		return nil
	}
	_, err := file.WriteAt([]byte{1, 0, 0, 0}, ShmEndedAt+4*int64(rank))
	return err
}

// ShmCardSize is the encoded size of a ShmCard with its mac, in bytes.
const ShmCardSize = 8 + 4 + 4 + 4 + 4 + 32 + sha256.Size

// shmMagic is the beginning of an encoded ShmCard. Its last byte is the version of the protocol.
const shmMagic = "weft-sh\x04"

// ShmCard is the record by which a rank shows its identity to the other ranks of its host. Its
// encoding is in the memory that these ranks share. The mac proves that the rank knows the secret
// of the job. The encoding is little endian:
//
//	 0        8      12     16    20    24      56      88
//	┌────────┬──────┬──────┬─────┬─────┬───────┬───────┐
//	│ magic  │ rank │ size │ pid │  0  │ nonce │  mac  │
//	└────────┴──────┴──────┴─────┴─────┴───────┴───────┘
type ShmCard struct {
	Rank, Size uint32   // world rank of the rank, and size of the job
	PID        uint32   // process id of the rank, in the pid namespace of its process
	Nonce      [32]byte // random number that each process chooses when it starts
}

// ShmJob holds the values of a job that all its ranks know. The macs of ShmCards depend on them.
type ShmJob struct {
	Secret [32]byte
	JobID  string
}

// Put writes the card and its mac to b, which has ShmCardSize bytes.
func (c *ShmCard) Put(b []byte, j *ShmJob) {
	_ = b[ShmCardSize-1]
	copy(b, shmMagic)
	binary.LittleEndian.PutUint32(b[8:], c.Rank)
	binary.LittleEndian.PutUint32(b[12:], c.Size)
	binary.LittleEndian.PutUint32(b[16:], c.PID)
	binary.LittleEndian.PutUint32(b[20:], 0)
	copy(b[24:56], c.Nonce[:])
	copy(b[56:], j.mac("card", b[:56]))
}

// Parse reads a card from b. If b is not what Put writes for a card of the same job, Parse returns
// false and does not change c.
func (c *ShmCard) Parse(b []byte, j *ShmJob) bool {
	if len(b) != ShmCardSize || string(b[:8]) != shmMagic || binary.LittleEndian.Uint32(b[20:]) != 0 {
		return false
	}
	if !hmac.Equal(j.mac("card", b[:56]), b[56:]) {
		return false
	}
	c.Rank = binary.LittleEndian.Uint32(b[8:])
	c.Size = binary.LittleEndian.Uint32(b[12:])
	c.PID = binary.LittleEndian.Uint32(b[16:])
	copy(c.Nonce[:], b[24:56])
	return true
}

// mac returns the HMAC-SHA256, under the job's secret, of the purpose what, the job id and b.
func (j *ShmJob) mac(what string, b []byte) []byte {
	h := hmac.New(sha256.New, j.Secret[:])
	h.Write([]byte("weft shm " + what))
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(j.JobID)))
	h.Write(n[:])
	h.Write([]byte(j.JobID))
	h.Write(b)
	return h.Sum(nil)
}

// Label returns a number that follows from the job, the purpose what and b. Only processes of the
// job can compute it. If b describes a property of a host, two processes with equal numbers know
// that their hosts have the same property.
func (j *ShmJob) Label(what string, b []byte) uint64 {
	return binary.LittleEndian.Uint64(j.mac(what, b))
}

// ShmWord is the first word of each message between two ranks of a host. The writer stores it after
// the rest of the message. So if a reader finds the sequence number that it waits for, the rest of
// the message is complete:
//
//	 63          32 31        8 7    0
//	┌──────────────┬───────────┬──────┐
//	│ sequence     │ length    │ kind │
//	└──────────────┴───────────┴──────┘
//
// Memory that no rank has written holds 0, which is the word of no message, because the kind of a
// message is not 0.
type ShmWord uint64

// ShmMaxLength is the largest number of bytes after the word that a ShmWord can express.
const ShmMaxLength = 1<<24 - 1

// NewShmWord returns the word of a message. length is at most ShmMaxLength, and kind is not 0.
func NewShmWord(seq uint32, length int, kind uint8) ShmWord {
	return ShmWord(seq)<<32 | ShmWord(length)<<8 | ShmWord(kind)
}

// Seq returns the sequence number of the message.
func (w ShmWord) Seq() uint32 { return uint32(w >> 32) }

// Length returns the number of bytes of the message after the word.
func (w ShmWord) Length() int { return int(w >> 8 & ShmMaxLength) }

// Kind returns the kind of the message, as NewShmWord got it.
func (w ShmWord) Kind() uint8 { return uint8(w) }
