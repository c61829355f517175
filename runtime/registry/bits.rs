//! A set of small numbers that finds its lowest member fast.
//!
//! One bit a number would do, but finding a member of a nearly empty set would walk all of it. So above the bits stands
//! a level with one bit per word below that is not zero, and so on up to a single word: everything here costs one step
//! per level, which is four for sixteen million numbers.

#[derive(Debug)]
pub(super) struct Bits {
    /// `levels[0]` has one bit per number; each bit above says that a word below is not zero.
    levels: Vec<Box<[u64]>>,
}

const WORD: usize = u64::BITS as usize;

impl Bits {
    /// None of the numbers below `bound`.
    pub(super) fn new(bound: usize) -> Self {
        let mut levels = Vec::new();
        let mut bits = bound.max(1);
        loop {
            let words = bits.div_ceil(WORD);
            levels.push(vec![0; words].into_boxed_slice());
            if words == 1 {
                return Self { levels };
            }
            bits = words;
        }
    }

    /// Adds a number that is not in the set.
    pub(super) fn insert(&mut self, number: usize) {
        assert!(!self.contains(number), "{number} is in the set already");
        let mut index = number;
        for level in &mut self.levels {
            let word = &mut level[index / WORD];
            let was_empty = *word == 0;
            *word |= 1 << (index % WORD);
            if !was_empty {
                return;
            }
            index /= WORD;
        }
    }

    /// Takes a number out that is in the set.
    pub(super) fn remove(&mut self, number: usize) {
        assert!(self.contains(number), "{number} is not in the set");
        let mut index = number;
        for level in &mut self.levels {
            let word = &mut level[index / WORD];
            *word &= !(1 << (index % WORD));
            if *word != 0 {
                return;
            }
            index /= WORD;
        }
    }

    pub(super) fn contains(&self, number: usize) -> bool {
        self.levels[0].get(number / WORD).is_some_and(|word| word & 1 << (number % WORD) != 0)
    }

    /// The members, the lowest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        std::iter::successors(self.first_from(0), |last| self.first_from(last + 1))
    }

    pub(super) fn first(&self) -> Option<usize> {
        self.first_from(0)
    }

    /// The lowest member that is not below `from`.
    fn first_from(&self, from: usize) -> Option<usize> {
        let mut index = from;
        for (height, level) in self.levels.iter().enumerate() {
            let at = index / WORD;
            let rest = level.get(at)? & (u64::MAX << (index % WORD));
            if rest != 0 {
                let top = at * WORD + rest.trailing_zeros() as usize;
                let below = self.levels[..height].iter().rev();
                return Some(below.fold(top, |word, level| word * WORD + level[word].trailing_zeros() as usize));
            }
            // Nothing in this word: one level up, look right of it.
            index = at + 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_lowest_first_through_every_level() {
        // Three levels, and a last word that is not full.
        let bound = WORD * WORD * 2 + 5;
        let mut bits = Bits::new(bound);
        assert_eq!((bits.levels.len(), bits.first()), (3, None));
        let members = [3, 70, WORD * WORD, bound - 1];
        members.iter().rev().for_each(|member| bits.insert(*member));
        assert_eq!(bits.iter().collect::<Vec<_>>(), members);
        assert!(bits.contains(70) && !bits.contains(71) && !bits.contains(usize::MAX));
        bits.remove(70);
        bits.remove(3);
        assert_eq!(bits.first(), Some(WORD * WORD));
        bits.remove(WORD * WORD);
        bits.remove(bound - 1);
        assert_eq!(bits.first(), None);
    }

    #[test]
    #[should_panic(expected = "3 is in the set already")]
    fn a_member_cannot_be_added_twice() {
        let mut bits = Bits::new(8);
        bits.insert(3);
        bits.insert(3);
    }
}
