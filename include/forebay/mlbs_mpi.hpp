/*
 * mlbs_mpi.hpp - MLBStore with the collective calls of Figure 5 of the MLBS paper, where MPI is
 * present: forebay::mpi::MLBStore<T> has all that forebay::MLBStore<T> has, and setComm(), reduce(),
 * allReduce(). Needs mpi.h (any MPI of version 2.2 or later). docs/container.md is the guide.
 *
 * Results are 0, a negative code of forebay.h, or -EIO where MPI has returned an error (its handler
 * for the communicator is the program's; by default MPI ends the program).
 */
#ifndef FOREBAY_MLBS_MPI_HPP
#define FOREBAY_MLBS_MPI_HPP

#include <forebay/mlbs.hpp>

#include <mpi.h>

#include <algorithm>
#include <complex>

namespace forebay::mpi {

/* The type of MPI for elements of T: those of C++ are here; a specialization adds others. */
template <class T> struct datatype {
    static_assert(sizeof(T) == 0,
                  "MPI has no type for these elements: specialize forebay::mpi::datatype<T> with "
                  "`static MPI_Datatype get()`, or reduce them by calls of your own");
};

#define FOREBAY_MPI_DATATYPE(TYPE, MPI_TYPE)                                                       \
    template <> struct datatype<TYPE> {                                                            \
        static MPI_Datatype get() { return MPI_TYPE; }                                             \
    }
FOREBAY_MPI_DATATYPE(char, MPI_CHAR);
FOREBAY_MPI_DATATYPE(signed char, MPI_SIGNED_CHAR);
FOREBAY_MPI_DATATYPE(unsigned char, MPI_UNSIGNED_CHAR);
FOREBAY_MPI_DATATYPE(short, MPI_SHORT);
FOREBAY_MPI_DATATYPE(unsigned short, MPI_UNSIGNED_SHORT);
FOREBAY_MPI_DATATYPE(int, MPI_INT);
FOREBAY_MPI_DATATYPE(unsigned, MPI_UNSIGNED);
FOREBAY_MPI_DATATYPE(long, MPI_LONG);
FOREBAY_MPI_DATATYPE(unsigned long, MPI_UNSIGNED_LONG);
FOREBAY_MPI_DATATYPE(long long, MPI_LONG_LONG);
FOREBAY_MPI_DATATYPE(unsigned long long, MPI_UNSIGNED_LONG_LONG);
FOREBAY_MPI_DATATYPE(float, MPI_FLOAT);
FOREBAY_MPI_DATATYPE(double, MPI_DOUBLE);
FOREBAY_MPI_DATATYPE(long double, MPI_LONG_DOUBLE);
FOREBAY_MPI_DATATYPE(std::complex<float>, MPI_C_FLOAT_COMPLEX);
FOREBAY_MPI_DATATYPE(std::complex<double>, MPI_C_DOUBLE_COMPLEX);
#undef FOREBAY_MPI_DATATYPE

template <class T> class MLBStore : public forebay::MLBStore<T> {
    using Base = forebay::MLBStore<T>;

public:
    using Base::Base;

    /* The processes that reduce together: MPI_COMM_WORLD where none is set. It stays the caller's,
     * and must be there as long as it is used here. */
    void setComm(MPI_Comm comm) noexcept { comm_ = comm; }

    /* The elements of rank `root` become what `op` makes of those of all ranks, element by element;
     * those of the others stay. Collective: all ranks call it, with as many elements. */
    int reduce(MPI_Op op, std::size_t root) {
        int rank = 0, ranks = 0;
        if (MPI_Comm_rank(comm_, &rank) != MPI_SUCCESS || MPI_Comm_size(comm_, &ranks) != MPI_SUCCESS)
            return -EIO;
        if (root >= static_cast<std::size_t>(ranks))
            return -EINVAL;
        const bool is_root = static_cast<std::size_t>(rank) == root;
        // Not in place: with that, MPICH 4.0 crashes where the root is another rank than 0.
        T *copy = nullptr;
        if (is_root && !this->empty())
            copy = static_cast<T *>(std::malloc(std::min(part_elements, this->size()) * sizeof(T)));
        const int code = in_parts([&](T *part, int count) {
            const void *from = part;
            if (copy != nullptr)
                from = std::memcpy(copy, part, static_cast<std::size_t>(count) * sizeof(T));
            else if (is_root)
                from = MPI_IN_PLACE;
            void *to = is_root ? part : nullptr;
            return MPI_Reduce(from, to, count, datatype<T>::get(), op, static_cast<int>(root), comm_);
        });
        std::free(copy);
        return code;
    }

    /* The same, and all ranks have the result. */
    int allReduce(MPI_Op op) {
        return in_parts([&](T *part, int count) {
            return MPI_Allreduce(MPI_IN_PLACE, part, count, datatype<T>::get(), op, comm_);
        });
    }

private:
    /* Elements of one call: it counts in an int, and a copy of them is small. */
    static constexpr std::size_t part_elements = std::size_t{1} << 20;

    template <class Call> int in_parts(Call call) {
        for (std::size_t at = 0; at < this->size();) {
            const std::size_t count = std::min(part_elements, this->size() - at);
            if (call(this->data() + at, static_cast<int>(count)) != MPI_SUCCESS)
                return -EIO;
            at += count;
        }
        return 0;
    }

    MPI_Comm comm_ = MPI_COMM_WORLD;
};

} // namespace forebay::mpi

#endif
